"""The live loop's parts on this machine: started, judged by what they do, healed, stopped."""

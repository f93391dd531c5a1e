"""The parts of the live loop on this machine: started, judged by what they do, healed and stopped."""

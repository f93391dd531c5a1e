// Judges pods by a Pod Security level, with the library that the API server itself judges them by.
//
//	podsecurity restricted <PODS.json
//
// Reads a JSON list of pods, and prints a line for each that is refused: its name and why. 1 if one is.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func main() {
	refused, err := judge()
	if err != nil {
		fmt.Fprintln(os.Stderr, "podsecurity:", err)
		os.Exit(2)
	}
	if refused {
		os.Exit(1)
	}
}

func judge() (refused bool, err error) {
	if len(os.Args) != 2 {
		return false, fmt.Errorf("give the level: privileged, baseline or restricted")
	}
	level, err := api.ParseLevel(os.Args[1])
	if err != nil {
		return false, err
	}
	var pods []corev1.Pod
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&pods); err != nil {
		return false, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks())
	if err != nil {
		return false, err
	}
	judgeAt := api.LevelVersion{Level: level, Version: api.LatestVersion()}
	for i := range pods {
		result := policy.AggregateCheckResults(
			evaluator.EvaluatePod(judgeAt, &pods[i].ObjectMeta, &pods[i].Spec))
		if !result.Allowed {
			refused = true
			fmt.Printf("%s: %s\n", pods[i].Name, result.ForbiddenDetail())
		}
	}
	return refused, nil
}

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestStarted: pods of Jobs end at once, all others are Ready.
func TestStarted(t *testing.T) {
	pod := &corev1.Pod{Spec: podSpec()}
	if s := started(pod); s.Phase != corev1.PodRunning || len(s.ContainerStatuses) != 1 || !s.ContainerStatuses[0].Ready {
		t.Errorf("%+v", s)
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	if s := started(pod); s.Phase != corev1.PodSucceeded || s.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("%+v", s)
	}
}

func TestPercentiles(t *testing.T) {
	var all []time.Duration
	for i := range 101 {
		all = append(all, time.Duration(100-i)*time.Second)
	}
	if got := percentiles(all); got != "50.00 s, 99.00 s" {
		t.Error(got)
	}
	if got := percentiles([]time.Duration{1500 * time.Microsecond}); got != "1.5 ms, 1.5 ms" {
		t.Error(got)
	}
	if got := percentiles(nil); got != "none" {
		t.Error(got)
	}
}

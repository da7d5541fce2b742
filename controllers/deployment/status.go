package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the Progressing and Available conditions. kubectl rollout status reads
// ProgressDeadlineExceeded; users' scripts read the others.
const (
	reasonCreated      = "NewReplicaSetCreated"
	reasonCreateFailed = "ReplicaSetCreateError"
	reasonFound        = "FoundNewReplicaSet"
	reasonUpdated      = "ReplicaSetUpdated"
	reasonAvailable    = "NewReplicaSetAvailable"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
	reasonMinimum      = "MinimumReplicasAvailable"
	reasonNoMinimum    = "MinimumReplicasUnavailable"
)

// statusOf counts, and carries the conditions over; Available is set, Progressing is left to
// progress.
func statusOf(
	d *appsv1.Deployment, newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet, now time.Time,
) appsv1.DeploymentStatus {
	status := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation,
		CollisionCount:     d.Status.CollisionCount,
		Conditions:         slices.Clone(d.Status.Conditions),
	}
	all := old
	if newest != nil {
		all = append(slices.Clone(old), newest)
		status.UpdatedReplicas = newest.Status.Replicas
	}
	var total, terminating int32
	for _, set := range all {
		total += replicasOf(set)
		status.Replicas += set.Status.Replicas
		status.ReadyReplicas += set.Status.ReadyReplicas
		status.AvailableReplicas += set.Status.AvailableReplicas
		if set.Status.TerminatingReplicas != nil {
			terminating += *set.Status.TerminatingReplicas
		}
	}
	status.TerminatingReplicas = &terminating
	status.UnavailableReplicas = max(0, total-status.AvailableReplicas)

	if status.AvailableReplicas >= limitsOf(d).least() {
		setCondition(&status, appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonMinimum,
			"Deployment has minimum availability.", now)
	} else {
		setCondition(&status, appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonNoMinimum,
			"Deployment does not have minimum availability.", now)
	}
	carryFailure(&status, newest, old)
	return status
}

// carryFailure shows the ReplicaSets' trouble with creating pods on the Deployment.
func carryFailure(status *appsv1.DeploymentStatus, newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	sets := old
	if newest != nil {
		sets = append([]*appsv1.ReplicaSet{newest}, old...)
	}
	for _, set := range sets {
		for _, c := range set.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
				setCondition(status, appsv1.DeploymentReplicaFailure, c.Status, c.Reason, c.Message,
					c.LastTransitionTime.Time)
				return
			}
		}
	}
	dropCondition(status, appsv1.DeploymentReplicaFailure)
}

// progress sets the Progressing condition of an unpaused Deployment. created is set when this step
// makes the newest ReplicaSet.
func progress(d *appsv1.Deployment, status *appsv1.DeploymentStatus, name string, created bool, now time.Time) {
	if !hasDeadline(d) {
		dropCondition(status, appsv1.DeploymentProgressing)
		return
	}
	current := condition(status, appsv1.DeploymentProgressing)
	is := func(reason string) bool { return current != nil && current.Reason == reason }
	say := func(s corev1.ConditionStatus, reason, format string) {
		setCondition(status, appsv1.DeploymentProgressing, s, reason, fmt.Sprintf(format, name), now)
	}
	switch {
	case created:
		say(corev1.ConditionTrue, reasonCreated, "Created new replica set %q")
	case name != "" && complete(d, status):
		if !is(reasonAvailable) {
			say(corev1.ConditionTrue, reasonAvailable, "ReplicaSet %q has successfully progressed.")
		}
	case is(reasonAvailable) && status.Replicas == status.UpdatedReplicas:
		// A finished rollout that is scaled, or loses a pod, is not a new rollout.
	case progressed(d.Status, *status):
		// Set afresh: the deadline counts from the last step forward.
		touch(status, name, now)
	case timedOut(d, current, now):
		if !is(reasonTimedOut) {
			say(corev1.ConditionFalse, reasonTimedOut, "ReplicaSet %q has timed out progressing.")
		}
	case current == nil:
		say(corev1.ConditionTrue, reasonFound, "Found new replica set %q")
	}
}

// touch renews the condition's update time although its reason may stay the same.
func touch(status *appsv1.DeploymentStatus, name string, now time.Time) {
	since := metav1.NewTime(now)
	if c := condition(status, appsv1.DeploymentProgressing); c != nil && c.Status == corev1.ConditionTrue {
		since = c.LastTransitionTime
	}
	dropCondition(status, appsv1.DeploymentProgressing)
	setCondition(status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonUpdated,
		fmt.Sprintf("ReplicaSet %q is progressing.", name), now)
	condition(status, appsv1.DeploymentProgressing).LastTransitionTime = since
}

// pausedCondition marks a Deployment as paused or resumed, so that the pause does not count towards
// the deadline.
func pausedCondition(d *appsv1.Deployment, status *appsv1.DeploymentStatus, now time.Time) {
	if !hasDeadline(d) {
		return
	}
	current := condition(status, appsv1.DeploymentProgressing)
	if current != nil && current.Reason == reasonTimedOut {
		return // a failure stays visible
	}
	paused := current != nil && current.Reason == reasonPaused
	switch {
	case d.Spec.Paused && !paused:
		setCondition(status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused,
			"Deployment is paused", now)
	case !d.Spec.Paused && paused:
		setCondition(status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed,
			"Deployment is resumed", now)
	}
}

// complete reports whether all pods are of the newest ReplicaSet and available.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	desired := limitsOf(d).desired
	return s.UpdatedReplicas == desired && s.Replicas == desired && s.AvailableReplicas == desired &&
		s.ObservedGeneration >= d.Generation
}

func progressed(was, is appsv1.DeploymentStatus) bool {
	return is.UpdatedReplicas > was.UpdatedReplicas ||
		is.Replicas-is.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		is.ReadyReplicas > was.ReadyReplicas ||
		is.AvailableReplicas > was.AvailableReplicas
}

// hasDeadline: MaxInt32 is how the API spells "none".
func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func timedOut(d *appsv1.Deployment, c *appsv1.DeploymentCondition, now time.Time) bool {
	return c != nil && (c.Reason == reasonTimedOut || untilDeadline(d, c, now) < 0)
}

func untilDeadline(d *appsv1.Deployment, c *appsv1.DeploymentCondition, now time.Time) time.Duration {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second).Sub(now)
}

// nextLook is when the deadline of an unfinished rollout passes, 0 when none is running.
func nextLook(d *appsv1.Deployment, status *appsv1.DeploymentStatus, now time.Time) time.Duration {
	if !hasDeadline(d) || d.Spec.Paused {
		return 0
	}
	c := condition(status, appsv1.DeploymentProgressing)
	if c == nil || c.Reason == reasonTimedOut || c.Reason == reasonAvailable {
		return 0
	}
	// Times in the API are whole seconds; a second more makes sure that the deadline is over.
	return max(time.Second, untilDeadline(d, c, now)+time.Second)
}

func condition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func dropCondition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions),
		func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

// setCondition leaves a condition alone when its status, reason and message stay.
func setCondition(
	s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string,
	now time.Time,
) {
	is := appsv1.DeploymentCondition{
		Type: t, Status: status, Reason: reason, Message: message,
		LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	was := condition(s, t)
	switch {
	case was == nil:
		s.Conditions = append(s.Conditions, is)
	case was.Status == status && was.Reason == reason && was.Message == message:
	default:
		if was.Status == status {
			is.LastTransitionTime = was.LastTransitionTime
		}
		*was = is
	}
}

package deployment

import (
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Annotations that Deployments and their ReplicaSets carry. kubectl rollout reads the first.
const (
	Revision        = "deployment.kubernetes.io/revision"
	revisionHistory = "deployment.kubernetes.io/revision-history"
	desiredReplicas = "deployment.kubernetes.io/desired-replicas"
	maxReplicas     = "deployment.kubernetes.io/max-replicas"
)

// notInherited are the annotations that a Deployment and its ReplicaSets each have for themselves.
var notInherited = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true,
	Revision:                           true,
	revisionHistory:                    true,
	desiredReplicas:                    true,
	maxReplicas:                        true,
	appsv1.DeprecatedRollbackTo:        true,
}

// revisionOf returns the revision of an object, 0 when it has none.
func revisionOf(annotations map[string]string) int64 {
	n, err := strconv.ParseInt(annotations[Revision], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// inherit returns the annotations that the newest ReplicaSet should have: the Deployment's, its own
// bookkeeping, and the revision, which only rises. A ReplicaSet that comes back in a rollback
// remembers the revisions that it had before.
func inherit(set, deployment map[string]string, revision int64) map[string]string {
	out := maps.Clone(set)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range deployment {
		if !notInherited[k] {
			out[k] = v
		}
	}
	had := revisionOf(out)
	if had >= revision {
		return out
	}
	if had > 0 {
		history := strings.FieldsFunc(out[revisionHistory], func(r rune) bool { return r == ',' })
		out[revisionHistory] = strings.Join(append(history, strconv.FormatInt(had, 10)), ",")
	}
	out[Revision] = strconv.FormatInt(revision, 10)
	return out
}

// withSizes returns annotations with the Deployment's size at the time of the last scaling. A later
// change of its size is thereby distinguished from a rollout.
func withSizes(annotations map[string]string, desired, most int32) map[string]string {
	out := maps.Clone(annotations)
	if out == nil {
		out = map[string]string{}
	}
	out[desiredReplicas] = strconv.Itoa(int(desired))
	out[maxReplicas] = strconv.Itoa(int(most))
	return out
}

// sizeIn reads one of the size annotations.
func sizeIn(annotations map[string]string, name string) (int32, bool) {
	n, err := strconv.ParseInt(annotations[name], 10, 32)
	return int32(n), err == nil
}

package deployment

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

var kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// templateHash names a template. When two templates of one Deployment have the same hash, the
// controller raises the collision count, which changes the hash.
func templateHash(t *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	// Go's encoding is the same for the same template: struct fields in order, map keys sorted.
	if err := json.NewEncoder(h).Encode(t); err != nil {
		panic(err) // an API type always encodes
	}
	if collisions != nil {
		fmt.Fprint(h, *collisions)
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// sameTemplate compares templates but for the label that ReplicaSets add.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, t := range []*corev1.PodTemplateSpec{a, b} {
		delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	}
	return equality.Semantic.DeepEqual(a, b)
}

// findNewest splits a Deployment's ReplicaSets into the one with its current template (the oldest
// of several) and the others.
func findNewest(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) (newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	for _, set := range oldestFirst(sets) {
		if newest == nil && sameTemplate(&set.Spec.Template, &d.Spec.Template) {
			newest = set
			continue
		}
		old = append(old, set)
	}
	return newest, old
}

// makeSet makes the ReplicaSet of the current template.
func makeSet(d *appsv1.Deployment, size, most int32, revision int64) *appsv1.ReplicaSet {
	hash := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := *d.Spec.Template.DeepCopy()
	template.Labels = withHash(template.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withHash(selector.MatchLabels, hash)
	desired := limitsOf(d).desired
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            d.Name + "-" + hash,
			Namespace:       d.Namespace,
			Labels:          template.Labels,
			Annotations:     withSizes(inherit(nil, d.Annotations, revision), desired, most),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        &size,
			MinReadySeconds: d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        template,
		},
	}
}

func withHash(labels map[string]string, hash string) map[string]string {
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	out[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return out
}

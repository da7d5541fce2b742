// Package history keeps the ControllerRevisions of DaemonSets and StatefulSets: numbered copies of
// the pod template, to which kubectl rollout undo goes back. The newest template always has the
// highest number.
//
// Decide is pure; Act writes. It is not for Deployments: their history are their ReplicaSets.
package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
)

// Plan says which revision is current and which writes make that so. Exactly one of Current and
// Create is set.
type Plan struct {
	Current *appsv1.ControllerRevision
	Create  *appsv1.ControllerRevision
	// Raise is Current with a higher number, nil if it has the highest.
	Raise *appsv1.ControllerRevision
	Old   []*appsv1.ControllerRevision // the others, lowest number first
}

// Decide finds the revision of a template among the owner's revisions, or plans it. Revisions
// differ in name and hash label. collisions changes both when another revision has the name.
func Decide(
	owner metav1.Object, kind schema.GroupVersionKind, template *corev1.PodTemplateSpec, collisions *int32,
	revisions []*appsv1.ControllerRevision,
) (Plan, error) {
	data, err := snapshot(template)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Old: slices.Clone(revisions)}
	slices.SortFunc(p.Old, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	for i, r := range slices.Backward(p.Old) {
		if r.DeletionTimestamp == nil && same(r.Data.Raw, data) {
			p.Current = r
			p.Old = slices.Delete(p.Old, i, i+1)
			break
		}
	}
	next := int64(1)
	if n := len(p.Old); n > 0 {
		next = p.Old[n-1].Revision + 1
	}
	if p.Current != nil {
		if p.Current.Revision < next {
			p.Raise = p.Current.DeepCopy()
			p.Raise.Revision = next
		}
		return p, nil
	}
	hash := hashOf(data, collisions)
	labels := maps.Clone(template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.ControllerRevisionHashLabelKey] = hash
	p.Create = &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: owner.GetName()[:min(len(owner.GetName()), 223)] + "-" + hash,
			Labels: labels, Annotations: maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: next,
	}
	return p, nil
}

// Beyond returns the oldest revisions that are more than limit and that no pod has, by name or
// hash.
func (p Plan) Beyond(limit *int32, used func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	if limit == nil {
		return nil
	}
	var out []*appsv1.ControllerRevision
	for _, r := range p.Old {
		if excess := len(p.Old) - int(*limit) - len(out); excess <= 0 {
			break
		}
		if r.DeletionTimestamp == nil && !used(r) {
			out = append(out, r)
		}
	}
	return out
}

// Act carries a plan out and returns the current revision. taken is true when another revision has
// its name: the owner's count of collisions must rise. wrote receives each write.
func Act(
	ctx context.Context, client kubernetes.Interface, owner metav1.Object, p Plan,
	wrote func(*appsv1.ControllerRevision),
) (current *appsv1.ControllerRevision, taken bool, err error) {
	if p.Create == nil {
		if p.Raise == nil {
			return p.Current, false, nil
		}
		now, err := client.AppsV1().ControllerRevisions(owner.GetNamespace()).Update(ctx, p.Raise,
			metav1.UpdateOptions{})
		if err != nil {
			return nil, false, fmt.Errorf("raising the number of revision %s: %w", p.Raise.Name, err)
		}
		wrote(now)
		return now, false, nil
	}
	now, err := client.AppsV1().ControllerRevisions(owner.GetNamespace()).Create(ctx, p.Create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		now, err = client.AppsV1().ControllerRevisions(owner.GetNamespace()).Get(ctx, p.Create.Name,
			metav1.GetOptions{})
		if err == nil && (!metav1.IsControlledBy(now, owner) || !same(now.Data.Raw, p.Create.Data.Raw)) {
			return nil, true, fmt.Errorf("name %s is taken by another revision", p.Create.Name)
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("creating revision %s: %w", p.Create.Name, err)
	}
	wrote(now)
	return now, false, nil
}

// snapshot is the strategic merge patch that brings a template back.
func snapshot(template *corev1.PodTemplateSpec) ([]byte, error) {
	text, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	var content map[string]any
	if err := json.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	content["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": content}})
}

// same compares the meaning of snapshots. Another version may have known other fields, or left out
// empty ones: that alone must not replace all pods.
func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := templateIn(a)
	y, errY := templateIn(b)
	return errX == nil && errY == nil && equality.Semantic.DeepEqual(x, y)
}

func hashOf(data []byte, collisions *int32) string {
	h := fnv.New32a()
	h.Write(data)
	// A status that is not written yet has no count, and then one of 0: both are the same name.
	if collisions != nil && *collisions != 0 {
		fmt.Fprint(h, *collisions)
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// Template reads the pod template out of a revision.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	t, err := templateIn(r.Data.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading revision %s: %w", r.Name, err)
	}
	return t, nil
}

func templateIn(snapshot []byte) (*corev1.PodTemplateSpec, error) {
	var content struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(snapshot, &content); err != nil {
		return nil, err
	}
	return &content.Spec.Template, nil
}

package persistentvolume

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storage "k8s.io/component-helpers/storage/volume"
)

// match returns the volume for a claim, nil when none fits. A volume that names the claim comes
// first. Then the fewest surplus access modes come before the smallest size, so that a claim takes
// no volume with more abilities than it needs.
func match(
	claim *corev1.PersistentVolumeClaim, candidates []*corev1.PersistentVolume, delayed bool,
) (*corev1.PersistentVolume, error) {
	var named []*corev1.PersistentVolume
	others := map[int][]*corev1.PersistentVolume{}
	for _, v := range candidates {
		switch {
		case !storage.CheckAccessModes(claim, v):
		case v.Spec.ClaimRef != nil:
			named = append(named, v)
		default:
			others[len(v.Spec.AccessModes)] = append(others[len(v.Spec.AccessModes)], v)
		}
	}
	if volume, err := best(claim, named, delayed); volume != nil || err != nil {
		return volume, err
	}
	for modes := 0; len(others) > 0; modes++ {
		if volume, err := best(claim, others[modes], delayed); volume != nil || err != nil {
			return volume, err
		}
		delete(others, modes)
	}
	return nil, nil
}

// best returns the smallest volume that a claim can have, of those the first by name.
func best(
	claim *corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume, delayed bool,
) (*corev1.PersistentVolume, error) {
	slices.SortFunc(volumes, func(a, b *corev1.PersistentVolume) int {
		x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
		return cmp.Or(x.Cmp(y), strings.Compare(a.Name, b.Name))
	})
	return storage.FindMatchingVolume(claim, volumes, nil, nil, delayed, true)
}

package persistentvolume

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storage "k8s.io/component-helpers/storage/volume"
)

// store is an API with claims and volumes. Objects in it do not change; a write replaces them.
type store struct {
	volumes map[string]*corev1.PersistentVolume
	claims  map[string]*corev1.PersistentVolumeClaim
	classes map[string]*storagev1.StorageClass
	version int
	// broken is the first rule that a write broke.
	broken error
}

func newStore() *store {
	return &store{
		volumes: map[string]*corev1.PersistentVolume{}, claims: map[string]*corev1.PersistentVolumeClaim{},
		classes: map[string]*storagev1.StorageClass{
			"fast": aClass("fast", "example.com/csi", storagev1.VolumeBindingImmediate),
			"late": aClass("late", "example.com/csi", storagev1.VolumeBindingWaitForFirstConsumer),
		},
	}
}

// snapshot is the store as an informer that lags may show it.
func (s *store) snapshot() *store {
	return &store{volumes: maps.Clone(s.volumes), claims: maps.Clone(s.claims), classes: s.classes}
}

var errConflict = errors.New("conflict")

func (s *store) stamp(m metav1.Object) {
	s.version++
	m.SetResourceVersion(fmt.Sprint(s.version))
}

// putVolume writes a volume if it is still at its resourceVersion.
func (s *store) putVolume(v *corev1.PersistentVolume) error {
	is := s.volumes[v.Name]
	if is == nil || is.ResourceVersion != v.ResourceVersion {
		return errConflict
	}
	v = v.DeepCopy()
	s.stamp(v)
	s.volumes[v.Name] = v
	s.check()
	return nil
}

func (s *store) putClaim(c *corev1.PersistentVolumeClaim) error {
	is := s.claims[c.Name]
	if is == nil || is.ResourceVersion != c.ResourceVersion {
		return errConflict
	}
	if isBound(is) && is.Spec.VolumeName != c.Spec.VolumeName {
		s.broken = errors.Join(s.broken,
			fmt.Errorf("claim %s moves from volume %s to %s", c.Name, is.Spec.VolumeName, c.Spec.VolumeName))
	}
	c = c.DeepCopy()
	s.stamp(c)
	s.claims[c.Name] = c
	s.check()
	return nil
}

// check looks for two claims on one volume.
func (s *store) check() {
	owner := map[string]string{}
	for _, c := range s.claims {
		if c.Status.Phase != corev1.ClaimBound {
			continue
		}
		if other := owner[c.Spec.VolumeName]; other != "" {
			s.broken = errors.Join(s.broken,
				fmt.Errorf("claims %s and %s are bound to volume %s", c.Name, other, c.Spec.VolumeName))
		}
		owner[c.Spec.VolumeName] = c.Name
	}
}

func (s *store) view(c *corev1.PersistentVolumeClaim) claimView {
	v := claimView{class: s.classes[storage.GetPersistentVolumeClaimClass(c)]}
	if c.Spec.VolumeName != "" {
		v.named = s.volumes[c.Spec.VolumeName]
		return v
	}
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		switch o := s.volumes[name]; {
		case o.Spec.ClaimRef != nil && o.Spec.ClaimRef.Name == c.Name,
			o.Spec.ClaimRef == nil && o.Spec.StorageClassName == storage.GetPersistentVolumeClaimClass(c):
			v.candidates = append(v.candidates, o)
		}
	}
	return v
}

// plan decides about one key as seen, with the API's answer about claims that seem to have gone.
func (s *store) plan(seen *store, key string) plan {
	if c := seen.claims[key]; c != nil {
		return decideClaim(c, seen.view(c))
	}
	v := seen.volumes[key]
	if v == nil {
		return plan{}
	}
	var c *corev1.PersistentVolumeClaim
	if ref := v.Spec.ClaimRef; ref != nil {
		if c = seen.claims[ref.Name]; c == nil || c.UID != ref.UID {
			c = s.claims[ref.Name]
		}
	}
	return decideVolume(v, c)
}

// carryOut carries out a plan; with half it ends after the first write, like a leader that dies.
func (s *store) carryOut(p plan, half bool) (changed bool) {
	if p.volume != nil {
		if s.putVolume(p.volume) != nil || half {
			return true
		}
	}
	if p.claim != nil {
		_ = s.putClaim(p.claim)
		return true
	}
	return p.volume != nil
}

// settle decides on the newest view until nothing changes. It returns false if that never ends.
func (s *store) settle() bool {
	for range 20 {
		changed := false
		for _, key := range s.keys() {
			changed = s.carryOut(s.plan(s, key), false) || changed
		}
		if !changed {
			return true
		}
	}
	return false
}

func (s *store) keys() []string {
	return slices.Concat(slices.Sorted(maps.Keys(s.volumes)), slices.Sorted(maps.Keys(s.claims)))
}

// happen acts like users, the scheduler and provisioners.
func (s *store) happen(rng *rand.Rand) {
	size := fmt.Sprintf("%dGi", 1+rng.IntN(4))
	class := []string{"", "fast", "late"}[rng.IntN(3)]
	volume, claim := fmt.Sprintf("v%d", rng.IntN(6)), fmt.Sprintf("c%d", rng.IntN(6))
	uid := func() types.UID { return types.UID(fmt.Sprintf("uid-%d", s.version)) }
	v, c := s.volumes[volume], s.claims[claim]
	switch rng.IntN(8) {
	case 0, 1: // a claim, some of which name their volume
		if c == nil {
			c = aClaim(claim, size, inClass(class))
			if rng.IntN(4) == 0 {
				c.Spec.VolumeName = volume
			}
			s.stamp(c)
			c.UID = uid()
			s.claims[claim] = c
		}
	case 2, 3: // a volume, some of which are kept for a claim
		if v == nil {
			v = aVolume(volume, size, ofStorageClass(class), volumeIn(corev1.VolumePending))
			switch {
			case rng.IntN(4) == 0:
				claimedBy(claim, "")(v)
			case c != nil && rng.IntN(4) == 0:
				claimedBy(claim, c.UID)(v)
			}
			s.stamp(v)
			v.UID = uid()
			s.volumes[volume] = v
		}
	case 4:
		delete(s.claims, claim)
	case 5: // protection keeps bound ones
		if v != nil && v.Status.Phase != corev1.VolumeBound && v.Spec.ClaimRef == nil {
			delete(s.volumes, volume)
		}
	case 6: // the scheduler chooses a volume, or a node
		if c == nil || c.Spec.VolumeName != "" || ptrTo(c.Spec.StorageClassName) != "late" {
			return
		}
		if v != nil && v.Spec.ClaimRef == nil && v.Spec.StorageClassName == "late" &&
			v.Status.Phase == corev1.VolumeAvailable {
			next, _, _ := storage.GetBindVolumeToClaim(v, c)
			_ = s.putVolume(next)
			return
		}
		next := c.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, storage.AnnSelectedNode, "n")
		_ = s.putClaim(next)
	case 7: // a provisioner makes a volume
		if v == nil && c != nil && !isBound(c) && c.Annotations[storage.AnnStorageProvisioner] != "" {
			v = aVolume(volume, "4Gi", ofStorageClass(ptrTo(c.Spec.StorageClassName)), volumeIn(corev1.VolumePending),
				claimedBy(claim, c.UID), provisionedBy("example.com/csi"),
				reclaim(corev1.PersistentVolumeReclaimDelete))
			s.stamp(v)
			v.UID = uid()
			s.volumes[volume] = v
		}
	}
}

func ptrTo(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// TestRandomLives: events come in any order and are seen late, and leaders die between two writes.
// No volume has two claims, no claim changes its volume, and all comes to rest.
func TestRandomLives(t *testing.T) {
	seeds := 1500
	if testing.Short() {
		seeds = 300
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		s := newStore()
		past := []*store{s.snapshot()}
		for range 60 {
			if rng.IntN(3) == 0 {
				s.happen(rng)
			} else if seen := past[max(0, len(past)-1-rng.IntN(4))]; len(seen.keys()) > 0 {
				keys := seen.keys()
				s.carryOut(s.plan(seen, keys[rng.IntN(len(keys))]), rng.IntN(4) == 0)
			}
			past = append(past, s.snapshot())
		}
		if s.broken != nil {
			t.Fatalf("seed %d: %v", seed, s.broken)
		}
		if !s.settle() || s.broken != nil {
			t.Fatalf("seed %d: it does not come to rest; broken: %v", seed, s.broken)
		}
		s.checkRest(t, seed)
	}
}

// checkRest looks at a store in which nothing is left to do.
func (s *store) checkRest(t *testing.T, seed int) {
	t.Helper()
	for _, c := range s.claims {
		v := s.volumes[c.Spec.VolumeName]
		if c.Status.Phase == corev1.ClaimBound &&
			(v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID ||
				v.Status.Phase != corev1.VolumeBound) {
			t.Errorf("seed %d: claim %s is bound to volume %s, which is %+v", seed, c.Name, c.Spec.VolumeName, v)
		}
		if c.Status.Phase == corev1.ClaimPending && c.Spec.VolumeName == "" &&
			ptrTo(c.Spec.StorageClassName) != "late" {
			for _, v := range s.volumes {
				if v.Spec.ClaimRef == nil && v.Spec.StorageClassName == ptrTo(c.Spec.StorageClassName) &&
					unfit(v, c) == "" {
					t.Errorf("seed %d: claim %s waits although volume %s is free", seed, c.Name, v.Name)
				}
			}
		}
	}
	for _, v := range s.volumes {
		// A user may keep a volume for a claim that cannot have it: that one waits for the other.
		if v.Status.Phase == corev1.VolumePending && (v.Spec.ClaimRef == nil || s.claims[v.Spec.ClaimRef.Name] == nil) {
			t.Errorf("seed %d: volume %s is pending for ever", seed, v.Name)
		}
	}
}

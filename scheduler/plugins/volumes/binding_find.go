package volumes

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// Why a node cannot give a pod its volumes.
const (
	reasonNoVolume      = "node(s) didn't find available persistent volumes to bind"
	reasonElsewhere     = "node(s) had volume node affinity conflict"
	reasonNoSpace       = "node(s) did not have enough free storage"
	reasonMissingVolume = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// nodeVolumes is how a pod gets its volumes on one node.
type nodeVolumes struct {
	// bind are volumes that there are, for claims.
	bind []binding
	// provision are claims for which volumes have to be made.
	provision []provisioning
}

type binding struct {
	claim  *v1.PersistentVolumeClaim
	volume *v1.PersistentVolume
}

type provisioning struct {
	claim *v1.PersistentVolumeClaim
	// from is the storage for the volume, nil when the driver publishes no capacity.
	from *storagev1.CSIStorageCapacity
}

// find looks for volumes on a node. It returns nil when all claims have theirs, or the reasons.
func (p *VolumeBinding) find(s *volumeState, node *v1.Node) (*nodeVolumes, []string, error) {
	var reasons []string
	for _, v := range s.bound {
		if storage.CheckNodeAffinity(v, node.Labels) != nil {
			reasons = append(reasons, reasonElsewhere)
			break
		}
	}
	if s.missing {
		reasons = append(reasons, reasonMissingVolume)
	}
	if len(s.unbound) == 0 {
		return nil, reasons, nil
	}
	found, left, err := match(s, node)
	if err != nil {
		return nil, nil, err
	}
	for _, claim := range left {
		from, why, err := p.canProvision(s, claim, node)
		if err != nil {
			return nil, nil, err
		}
		if why != "" {
			return nil, append(reasons, why), nil
		}
		found.provision = append(found.provision, provisioning{claim, from})
	}
	return found, reasons, nil
}

// match finds volumes for claims, the smallest claim first, and returns the claims without one. A
// claim whose volume is being made on a node gets no other volume.
func match(s *volumeState, node *v1.Node) (*nodeVolumes, []*v1.PersistentVolumeClaim, error) {
	claims := slices.Clone(s.unbound)
	slices.SortStableFunc(claims, func(a, b *v1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[v1.ResourceStorage], b.Spec.Resources.Requests[v1.ResourceStorage]
		return x.Cmp(y)
	})
	found, taken := &nodeVolumes{}, map[string]*v1.PersistentVolume{}
	var left []*v1.PersistentVolumeClaim
	for _, claim := range claims {
		if _, making := claim.Annotations[storage.AnnSelectedNode]; making {
			left = append(left, claim)
			continue
		}
		volume, err := storage.FindMatchingVolume(claim, s.byClass[storage.GetPersistentVolumeClaimClass(claim)], node,
			taken, true, true)
		if err != nil {
			return nil, nil, err
		}
		if volume == nil {
			left = append(left, claim)
			continue
		}
		taken[volume.Name] = volume
		found.bind = append(found.bind, binding{claim, volume})
	}
	return found, left, nil
}

// canProvision returns why a volume cannot be made for a claim on a node, "" if it can.
func (p *VolumeBinding) canProvision(
	s *volumeState, claim *v1.PersistentVolumeClaim, node *v1.Node,
) (from *storagev1.CSIStorageCapacity, why string, _ error) {
	if selected, making := claim.Annotations[storage.AnnSelectedNode]; making && selected != node.Name {
		return nil, reasonNoVolume, nil
	}
	class, err := p.classes.Get(storage.GetPersistentVolumeClaimClass(claim))
	switch {
	case err != nil:
		return nil, "", err
	case class.Provisioner == "" || class.Provisioner == storage.NotSupportedProvisioner:
		return nil, reasonNoVolume, nil
	case !inTopology(class.AllowedTopologies, node.Labels):
		return nil, reasonNoVolume, nil
	}
	driver, err := p.drivers.Get(class.Provisioner)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !ptr.Deref(driver.Spec.StorageCapacity, false):
		return nil, "", nil // the driver publishes no capacity
	case err != nil:
		return nil, "", err
	}
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if c := s.storage[class.Name].find(node.Labels, size.Value()); c != nil {
		return c, "", nil
	}
	return nil, reasonNoSpace, nil
}

// inTopology reports whether a class makes volumes for nodes with these labels.
func inTopology(terms []v1.TopologySelectorTerm, node map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t v1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 &&
			!slices.ContainsFunc(t.MatchLabelExpressions, func(r v1.TopologySelectorLabelRequirement) bool {
				value, ok := node[r.Key]
				return !ok || !slices.Contains(r.Values, value)
			})
	})
}

// limitOf is the largest volume of some storage, -1 when it is unknown.
func limitOf(c *storagev1.CSIStorageCapacity) int64 {
	switch {
	case c.MaximumVolumeSize != nil:
		return c.MaximumVolumeSize.Value()
	case c.Capacity != nil:
		return c.Capacity.Value()
	}
	return -1
}

// comparable reports whether nodes can be compared by the sizes of volumes or storage.
func (n *nodeVolumes) comparable() bool {
	return len(n.bind) > 0 || slices.ContainsFunc(n.provision, func(x provisioning) bool { return x.from != nil })
}

// score is the mean over the classes of storage. If there are existing volumes, only they count.
func (n *nodeVolumes) score(of func(used, total int64) int64) int64 {
	if n == nil {
		return 0
	}
	type sums struct{ used, total int64 }
	classes := map[string]sums{}
	for _, b := range n.bind {
		class := storage.GetPersistentVolumeClass(b.volume)
		wanted, size := b.claim.Spec.Resources.Requests[v1.ResourceStorage], b.volume.Spec.Capacity[v1.ResourceStorage]
		c := classes[class]
		classes[class] = sums{c.used + wanted.Value(), c.total + size.Value()}
	}
	if len(n.bind) == 0 {
		for _, x := range n.provision {
			if x.from == nil || x.from.Capacity == nil {
				continue
			}
			class := storage.GetPersistentVolumeClaimClass(x.claim)
			wanted := x.claim.Spec.Resources.Requests[v1.ResourceStorage]
			classes[class] = sums{classes[class].used + wanted.Value(), x.from.Capacity.Value()}
		}
	}
	if len(classes) == 0 {
		return 0
	}
	var sum int64
	for _, c := range classes {
		if c.total == 0 || c.used > c.total {
			sum += of(1, 1)
		} else {
			sum += of(c.used, c.total)
		}
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}

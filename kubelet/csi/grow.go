package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/barque/barque/kubelet/volumes"
)

// growth is the node's view of the size of a volume.
type growth struct {
	size   resource.Quantity // as the node has made it
	looked time.Time
	// busy is set when the driver does not expand the volume while it is in use.
	busy bool
	// failed is set when the driver has refused for certain.
	failed bool
}

// step is the decision about the size of a volume.
type step struct {
	expand bool
	to     resource.Quantity
	// done is set when the claim has its size: another node has expanded the volume before.
	done bool
	// refused is set when the volume is not expanded because it is read-only here.
	refused bool
	// recovers is set when the claim keeps an account of the expansion, which must be updated.
	recovers bool
	// hopeless is set when a failure is reported as final: the user wants another size.
	hopeless bool
}

// notRequired is the annotation of a claim whose volume is expanded without its nodes.
const notRequired = "volume.kubernetes.io/node-expansion-not-required"

// decide decides about the size of a volume as upstream does.
func decide(g growth, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, readOnly bool) step {
	wanted := pv.Spec.Capacity[v1.ResourceStorage]
	if wanted.Cmp(g.size) <= 0 || g.busy {
		return step{}
	}
	if readOnly {
		return step{to: wanted, refused: true}
	}
	account := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	if account == "" && claim.Status.AllocatedResources == nil {
		return step{expand: true, to: wanted} // by a resizer that keeps no account
	}
	to := claim.Status.AllocatedResources[v1.ResourceStorage]
	has, asked := claim.Status.Capacity[v1.ResourceStorage], claim.Spec.Resources.Requests[v1.ResourceStorage]
	s := step{to: to, recovers: true, hopeless: g.failed && asked.Cmp(to) != 0, done: has.Cmp(to) >= 0 && account == ""}
	switch {
	case s.done:
		// A volume with many writers is expanded on each node.
		s.expand = slices.Contains(claim.Spec.AccessModes, v1.ReadWriteMany) &&
			!metav1.HasAnnotation(claim.ObjectMeta, notRequired)
	case account == v1.PersistentVolumeClaimNodeResizePending ||
		account == v1.PersistentVolumeClaimNodeResizeInProgress:
		s.expand = true
	}
	return s
}

// grow expands a published volume to the size of its PV. It returns when to look again.
func (p *Plugin) grow(ctx context.Context, pod *v1.Pod, v *volumes.Volume) (time.Time, error) {
	if v.PV == nil {
		return never, nil
	}
	name := string(uniqueName(driverOf(v), handleOf(v)))
	p.mu.Lock()
	g := p.growing[name]
	p.mu.Unlock()
	now := p.Now()
	if g != nil && now.Before(g.looked.Add(refreshEvery)) {
		return g.looked.Add(refreshEvery), nil
	}
	claim, err := p.Claims.Claim(ctx, pod.Namespace, v.Claim)
	if err != nil {
		if ctx.Err() != nil {
			return time.Time{}, context.Cause(ctx)
		}
		p.Logger.Warn("cannot tell whether a volume is to be larger; trying again", "claim", pod.Namespace+"/"+v.Claim,
			"err", err)
		return now.Add(refreshEvery), nil
	}
	next, first := growth{looked: now}, g == nil
	if first {
		next.size = claim.Status.Capacity[v1.ResourceStorage]
	} else {
		next.size, next.busy, next.failed = g.size, g.busy, g.failed
	}
	if settled(claim, next.size) {
		p.note(name, next)
		return now.Add(refreshEvery), nil
	}
	pv, err := p.Claims.Volume(ctx, v.PV.Name)
	if err != nil {
		return now.Add(refreshEvery), err
	}
	s := decide(next, claim, pv, v.ReadOnly)
	switch {
	case s.refused:
		text := fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system",
			v.PV.Name)
		p.Event(pod, v1.EventTypeWarning, "FileSystemResizeFailed", text)
		p.Event(claim, v1.EventTypeWarning, "FileSystemResizeFailed", text)
		next.size = s.to
	case s.expand:
		err = p.one(ctx, driverOf(v), handleOf(v), "volume_fs_resize", func(ctx context.Context) error {
			return p.expand(ctx, pod, v, claim, s, &next)
		})
	case s.done:
		next.size = s.to
	}
	if ctx.Err() != nil {
		return time.Time{}, context.Cause(ctx) // the call may go on; the next pod looks at its result
	}
	if err == nil {
		p.note(name, next)
		return now.Add(refreshEvery), nil
	}
	if first {
		return time.Time{}, fmt.Errorf("MountVolume.Setup failed while expanding volume: %w", err)
	}
	p.Event(pod, v1.EventTypeWarning, "VolumeResizeFailed",
		fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", v.PV.Name, err))
	p.note(name, next)
	return now.Add(refreshEvery), nil
}

func (p *Plugin) note(name string, g growth) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growing[name] = &g
}

// settled reports whether a claim has the size that it requests, and the node has seen that.
func settled(claim *v1.PersistentVolumeClaim, size resource.Quantity) bool {
	has, asked := claim.Status.Capacity[v1.ResourceStorage], claim.Spec.Resources.Requests[v1.ResourceStorage]
	return claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] == "" && asked.Cmp(has) <= 0 && has.Cmp(size) <= 0
}

// expand has the driver expand a volume, and records it in the claim.
func (p *Plugin) expand(
	ctx context.Context, pod *v1.Pod, v *volumes.Volume, claim *v1.PersistentVolumeClaim, s step, g *growth,
) error {
	if s.recovers && !s.done {
		marked, err := p.account(ctx, claim, true,
			func(c *v1.PersistentVolumeClaim) { setAccount(c, v1.PersistentVolumeClaimNodeResizeInProgress) })
		if err != nil {
			return err
		}
		claim = marked
	}
	err := p.askToExpand(ctx, v, s.to)
	if errors.Is(err, errCannotExpand) && (s.done || !s.recovers) {
		g.size = s.to
		return nil
	}
	if err != nil {
		code := status.Code(err)
		if s.recovers && (final(err) || errors.Is(err, errCannotExpand)) {
			g.failed = true
			p.tellFailure(ctx, claim, err,
				s.hopeless || code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound)
		}
		if code == codes.FailedPrecondition {
			p.Logger.Warn("the driver does not make a volume larger while it is in use", "volume", v.PV.Name, "err",
				err)
			g.busy = true
			return nil
		}
		return err
	}
	g.size, g.failed = s.to, false
	text := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", v.PV.Name, p.NodeName)
	p.Event(pod, v1.EventTypeNormal, "FileSystemResizeSuccessful", text)
	p.Event(claim, v1.EventTypeNormal, "FileSystemResizeSuccessful", text)
	if has := claim.Status.Capacity[v1.ResourceStorage]; s.done || !s.recovers && has.Cmp(s.to) >= 0 {
		return nil
	}
	_, err = p.account(ctx, claim, true, func(c *v1.PersistentVolumeClaim) {
		if c.Status.Capacity == nil {
			c.Status.Capacity = v1.ResourceList{}
		}
		c.Status.Capacity[v1.ResourceStorage] = s.to
		setAccount(c, "")
		c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions,
			func(c v1.PersistentVolumeClaimCondition) bool { return resizing[c.Type] })
	})
	if err != nil {
		g.size = claim.Status.Capacity[v1.ResourceStorage] // recorded again later: the driver has nothing to do then
		return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
	}
	return nil
}

// errCannotExpand is returned when a driver does not expand volumes on their nodes.
var errCannotExpand = errors.New("NodeExpand is not supported by the CSI driver")

func (p *Plugin) askToExpand(ctx context.Context, v *volumes.Volume, to resource.Quantity) error {
	driver := driverOf(v)
	s, err := p.open(ctx, driver)
	if err != nil {
		return err
	}
	defer s.close()
	if !s.can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return fmt.Errorf("%w %s", errCannotExpand, driver)
	}
	secrets, err := p.secret(ctx, "NodeExpandSecretRef", v.PV.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	r := &csipb.NodeExpandVolumeRequest{
		VolumeId: handleOf(v), VolumePath: p.target(v), CapacityRange: &csipb.CapacityRange{RequiredBytes: to.Value()},
		VolumeCapability: s.capabilityOf(useOf(v, nil, "")), Secrets: secrets,
	}
	if s.can(stages) {
		r.StagingTargetPath = v.Staged
	}
	if _, err := s.NodeExpandVolume(ctx, r); err != nil {
		return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
	}
	return nil
}

// resizing are the conditions of a claim about an expansion.
var resizing = map[v1.PersistentVolumeClaimConditionType]bool{
	v1.PersistentVolumeClaimFileSystemResizePending: true, v1.PersistentVolumeClaimResizing: true,
	v1.PersistentVolumeClaimControllerResizeError: true, v1.PersistentVolumeClaimNodeResizeError: true,
}

func setAccount(c *v1.PersistentVolumeClaim, to v1.ClaimResourceStatus) {
	statuses := maps.Clone(c.Status.AllocatedResourceStatuses)
	if statuses == nil {
		statuses = map[v1.ResourceName]v1.ClaimResourceStatus{}
	}
	if statuses[v1.ResourceStorage] = to; to == "" {
		delete(statuses, v1.ResourceStorage)
	}
	if len(statuses) == 0 {
		statuses = nil
	}
	c.Status.AllocatedResourceStatuses = statuses
}

// tellFailure writes the reason of a failed expansion into a claim, as final if it is hopeless.
func (p *Plugin) tellFailure(ctx context.Context, claim *v1.PersistentVolumeClaim, why error, hopeless bool) {
	_, err := p.account(ctx, claim, false, func(c *v1.PersistentVolumeClaim) {
		if hopeless {
			setAccount(c, v1.PersistentVolumeClaimNodeResizeInfeasible)
		}
		if !slices.ContainsFunc(c.Status.Conditions, func(have v1.PersistentVolumeClaimCondition) bool {
			return have.Type == v1.PersistentVolumeClaimNodeResizeError && have.Status == v1.ConditionTrue
		}) {
			c.Status.Conditions = append(c.Status.Conditions, v1.PersistentVolumeClaimCondition{
				Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(p.Now()),
				Message:            fmt.Sprintf("failed to expand pvc with %v", why),
			})
		}
	})
	if err != nil {
		p.Logger.Warn("cannot tell a claim why it does not get larger", "claim", claim.Namespace+"/"+claim.Name,
			"err", err)
	}
}

// account changes the status of a claim. Where it matters it fails when the claim has changed
// meanwhile.
func (p *Plugin) account(
	ctx context.Context, claim *v1.PersistentVolumeClaim, same bool, change func(*v1.PersistentVolumeClaim),
) (*v1.PersistentVolumeClaim, error) {
	wanted := claim.DeepCopy()
	change(wanted)
	if same {
		wanted.ResourceVersion, claim = claim.ResourceVersion, claim.DeepCopy()
		claim.ResourceVersion = ""
	}
	before, err := json.Marshal(claim)
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, claim)
	if err != nil {
		return nil, err
	}
	return p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/barque/barque/kubelet/volumes"
	"github.com/barque/barque/kubelet/volumes/diskusage"
	"github.com/barque/barque/kubelet/volumes/fsgroup"
)

// SetUp implements volumes.Plugin.
func (p *Plugin) SetUp(ctx context.Context, pod *v1.Pod, v *volumes.Volume) (string, time.Time, error) {
	path := p.path(v)
	// A pod that has the volume from an earlier process goes on while the driver or the API server
	// is away.
	adopted, err := p.shown(v)
	if err != nil {
		return "", time.Time{}, err
	}
	adopted = adopted && !p.publishedBefore(v)
	spec, err := p.spec(ctx, driverOf(v))
	if err == nil && !p.due(spec, v).After(p.Now()) {
		if !adopted {
			err = p.attached(ctx, v)
		}
		if err == nil {
			err = p.one(ctx, driverOf(v), handleOf(v), "volume_mount",
				func(ctx context.Context) error { return p.publish(ctx, spec, pod, v) })
		}
	}
	if err != nil {
		if adopted && ctx.Err() == nil {
			return path, p.Now().Add(refreshEvery), nil
		}
		return "", time.Time{}, err
	}
	again, err := p.grow(ctx, pod, v)
	if err != nil {
		return "", time.Time{}, err
	}
	if at := p.due(spec, v); again.IsZero() || at.Before(again) {
		again = at
	}
	if again.Equal(never) {
		again = time.Time{}
	}
	return path, again, nil
}

// path returns a pod's path of a volume: a directory, or a link to a device.
func (p *Plugin) path(v *volumes.Volume) string {
	if v.Block() {
		return v.Dir
	}
	return p.target(v)
}

// never is later than any time.
var never = time.Unix(1<<40, 0)

// due is when a volume must be published, for the first time by this process or again.
func (p *Plugin) due(spec *storagev1.CSIDriver, v *volumes.Volume) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.published[p.target(v)]
	switch {
	case have == nil:
		return time.Time{}
	case spec == nil || !isTrue(spec.Spec.RequiresRepublish) || v.Block():
		return never
	case !have.renew.IsZero() && have.renew.Before(have.at.Add(refreshEvery)):
		return have.renew
	}
	return have.at.Add(refreshEvery)
}

func (p *Plugin) publishedBefore(v *volumes.Volume) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published[p.target(v)] != nil
}

// begun reports whether a driver has been asked to publish a volume, and has not undone it.
func (p *Plugin) begun(v *volumes.Volume) (bool, error) {
	if !v.Block() {
		return known(v.Dir)
	}
	_, err := os.Lstat(v.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// shown reports whether a volume is mounted for a pod.
func (p *Plugin) shown(v *volumes.Volume) (bool, error) {
	if begun, err := p.begun(v); err != nil || !begun {
		return false, err
	}
	return p.Mounts.Mounted(p.target(v))
}

func (p *Plugin) publish(ctx context.Context, spec *storagev1.CSIDriver, pod *v1.Pod, v *volumes.Volume) error {
	if err := supports(spec, v); err != nil {
		return err
	}
	if err := p.alone(v); err != nil {
		return err
	}
	policy, err := groupPolicy(spec, v)
	if err != nil {
		return err
	}
	s, err := p.open(ctx, driverOf(v))
	if err != nil {
		return err
	}
	defer s.close()
	request, renew, err := p.request(ctx, s, spec, pod, v)
	if err != nil {
		return err
	}
	again, err := p.begun(v)
	if err != nil {
		return err
	}
	if err := p.begin(v); err != nil {
		return err
	}
	if _, err := s.NodePublishVolume(ctx, request); err != nil {
		if final(err) && !again {
			return errors.Join(err, p.unbegin(v))
		}
		return err
	}
	group := groupOf(pod)
	if group != nil && !v.Block() && !request.Readonly && !s.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) &&
		policy {
		if err := fsgroup.Apply(ctx, pod, p.target(v), false); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published[p.target(v)] = &published{p.Now(), renew}
	return nil
}

// request returns the driver's request to publish a volume. Its tokens must be renewed at a time:
// zero for never.
func (p *Plugin) request(
	ctx context.Context, s *session, spec *storagev1.CSIDriver, pod *v1.Pod, v *volumes.Volume,
) (*csipb.NodePublishVolumeRequest, time.Time, error) {
	r := &csipb.NodePublishVolumeRequest{VolumeId: handleOf(v), TargetPath: p.target(v),
		VolumeContext: map[string]string{}}
	label, err := p.labelOf(ctx, v)
	if err != nil {
		return nil, time.Time{}, err
	}
	how := useOf(v, groupOf(pod), label)
	var secretRef *v1.SecretReference
	if v.PV != nil {
		source := v.PV.Spec.CSI
		secretRef, r.Readonly = source.NodePublishSecretRef, v.ReadOnly
		maps.Copy(r.VolumeContext, source.VolumeAttributes)
		if s.can(stages) {
			r.StagingTargetPath = v.Staged
		}
		context, err := p.publishContext(ctx, v)
		if err != nil {
			return nil, time.Time{}, err
		}
		r.PublishContext = context
	} else {
		source := v.Source.CSI
		r.Readonly = isTrue(source.ReadOnly)
		maps.Copy(r.VolumeContext, source.VolumeAttributes)
		if ref := source.NodePublishSecretRef; ref != nil {
			secretRef = &v1.SecretReference{Namespace: pod.Namespace, Name: ref.Name}
		}
	}
	r.VolumeCapability = s.capabilityOf(how)
	secrets, err := p.secret(ctx, "NodePublishSecretRef", secretRef)
	if err != nil {
		return nil, time.Time{}, err
	}
	r.Secrets = secrets
	if spec == nil {
		return r, time.Time{}, nil
	}
	if isTrue(spec.Spec.PodInfoOnMount) {
		maps.Copy(r.VolumeContext, podInfo(pod, v))
	}
	if v.Block() {
		return r, time.Time{}, nil
	}
	tokens, renew, err := p.tokens(ctx, spec, pod)
	if err != nil || tokens == "" {
		return r, renew, err
	}
	if isTrue(spec.Spec.ServiceAccountTokenInSecrets) {
		if r.Secrets == nil {
			r.Secrets = map[string]string{}
		}
		r.Secrets[tokensKey] = tokens
	} else {
		r.VolumeContext[tokensKey] = tokens
	}
	return r, renew, nil
}

// podInfo returns the attributes of the pod for a driver.
func podInfo(pod *v1.Pod, v *volumes.Volume) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            pod.Name,
		"csi.storage.k8s.io/pod.namespace":       pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           fmt.Sprint(v.PV == nil),
	}
}

// tokensKey is the key under which a driver finds the pod's tokens.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// tokens are those of the pod's service account that a driver wants, by audience.
func (p *Plugin) tokens(
	ctx context.Context, spec *storagev1.CSIDriver, pod *v1.Pod,
) (text string, renew time.Time, err error) {
	if len(spec.Spec.TokenRequests) == 0 {
		return "", time.Time{}, nil
	}
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, want := range spec.Spec.TokenRequests {
		var seconds int64
		if want.ExpirationSeconds != nil {
			seconds = *want.ExpirationSeconds
		}
		token, until, err := p.Tokens.Token(ctx, pod, want.Audience, seconds)
		if err != nil {
			return "", time.Time{},
				fmt.Errorf("token of service account %s for CSI driver %s: %w", pod.Spec.ServiceAccountName, spec.Name,
					err)
		}
		tokens[want.Audience] = token
		if renew.IsZero() || until.Before(renew) {
			renew = until
		}
	}
	data, err := json.Marshal(tokens)
	return string(data), renew, err
}

// supports refuses volumes of a lifecycle that the driver does not have.
func supports(spec *storagev1.CSIDriver, v *volumes.Volume) error {
	mode := lifecycleOf(v)
	switch {
	case spec == nil && mode == storagev1.VolumeLifecyclePersistent:
		return nil
	case spec == nil:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, driverOf(v))
	case slices.Contains(spec.Spec.VolumeLifecycleModes, mode):
		return nil
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, driverOf(v),
		spec.Spec.VolumeLifecycleModes)
}

// alone refuses a volume for a single pod that another pod has. The scheduler respects that, but
// not all pods come from it.
func (p *Plugin) alone(v *volumes.Volume) error {
	if v.PV == nil || !slices.Equal(v.PV.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}) {
		return nil
	}
	all, err := p.records()
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.PV == nil || other.PV.Name != v.PV.Name || other.Pod == v.Pod {
			continue
		}
		if has, err := p.begun(other); err != nil || has {
			return errors.Join(err,
				errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod"))
		}
	}
	return nil
}

// groupPolicy reports whether the pod's fsGroup becomes the owner of a volume's files.
func groupPolicy(spec *storagev1.CSIDriver, v *volumes.Volume) (bool, error) {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if spec != nil {
		if spec.Spec.FSGroupPolicy == nil || *spec.Spec.FSGroupPolicy == "" {
			return false, fmt.Errorf("CSIDriver %s has no fsGroupPolicy", spec.Name)
		}
		policy = *spec.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return false, nil
	case storagev1.FileFSGroupPolicy:
		return true, nil
	}
	if how := useOf(v, nil, ""); how.fsType == "" {
		return false, nil
	}
	return v.PV == nil || slices.ContainsFunc(v.PV.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool {
		return m == v1.ReadWriteOnce || m == v1.ReadWriteOncePod
	}), nil
}

func groupOf(pod *v1.Pod) *int64 {
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// begin records on disk that the driver is asked to publish a volume.
func (p *Plugin) begin(v *volumes.Volume) error {
	if !v.Block() {
		if err := os.MkdirAll(v.Dir, 0o750); err != nil {
			return err
		}
		return saveData(v.Dir, p.dataOf(v))
	}
	for _, dir := range []string{filepath.Dir(p.target(v)), filepath.Dir(v.Dir)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	// A driver that does not stage has no note of the device yet.
	if err := saveData(p.stagingData(v), p.dataOf(v)); err != nil {
		return err
	}
	if err := os.Symlink(p.target(v), v.Dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// unbegin undoes begin.
func (p *Plugin) unbegin(v *volumes.Volume) error {
	if err := p.empty(p.target(v)); err != nil {
		return err
	}
	if v.Block() {
		return removeEmpty(v.Dir)
	}
	return forgetData(v.Dir)
}

// TearDown implements volumes.Plugin.
func (p *Plugin) TearDown(v *volumes.Volume) error {
	return p.one(p.ctx, driverOf(v), handleOf(v), "volume_unmount",
		func(ctx context.Context) error { return p.unpublish(ctx, v) })
}

func (p *Plugin) unpublish(ctx context.Context, v *volumes.Volume) error {
	begun, err := p.begun(v)
	if err != nil {
		return err
	}
	if begun {
		s, err := p.open(ctx, driverOf(v))
		if err != nil {
			return err
		}
		defer s.close()
		if _, err := s.NodeUnpublishVolume(ctx,
			&csipb.NodeUnpublishVolumeRequest{VolumeId: handleOf(v), TargetPath: p.target(v)}); err != nil {
			return err
		}
	}
	p.mu.Lock()
	delete(p.published, p.target(v))
	p.mu.Unlock()
	return p.unbegin(v)
}

// Usage implements volumes.Plugin.
func (p *Plugin) Usage(ctx context.Context, v *volumes.Volume, _ string) (*diskusage.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	s, err := p.open(ctx, driverOf(v))
	if err != nil {
		return nil, err
	}
	defer s.close()
	if !s.can(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, nil
	}
	answer, err := s.NodeGetVolumeStats(ctx,
		&csipb.NodeGetVolumeStatsRequest{VolumeId: handleOf(v), VolumePath: p.target(v)})
	if err != nil {
		return nil, err
	}
	var u diskusage.Usage
	for _, part := range answer.Usage {
		free, size, used := uint64(max(part.Available, 0)), uint64(max(part.Total, 0)), uint64(max(part.Used, 0))
		switch part.Unit {
		case csipb.VolumeUsage_BYTES:
			u.Available, u.Capacity, u.Used = free, size, used
		case csipb.VolumeUsage_INODES:
			u.InodesFree, u.Inodes, u.InodesUsed = free, size, used
		}
	}
	return &u, nil
}

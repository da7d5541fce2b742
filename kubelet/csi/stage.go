package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/kubelet/volumes"
)

const stages = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME

// Stage implements volumes.Stager.
func (p *Plugin) Stage(ctx context.Context, v *volumes.Volume) error {
	label, labelErr := p.labelOf(ctx, v)
	p.mu.Lock()
	have, done := p.staged[v.Staged]
	p.mu.Unlock()
	if done && labelErr == nil && have == label {
		return nil
	}
	adopted, err := p.shown(v)
	if err != nil {
		return err
	}
	if adopted {
		// The pod keeps its volume.
		if done {
			return nil
		}
		if label, err = p.notedLabel(v); err != nil {
			return err
		}
	} else {
		if labelErr != nil {
			return labelErr
		}
		if err := p.attached(ctx, v); err != nil {
			return err
		}
	}
	err = p.one(ctx, driverOf(v), handleOf(v), "volume_mount_device",
		func(ctx context.Context) error { return p.stage(ctx, v, label) })
	if err == nil || ctx.Err() != nil {
		return err
	}
	if adopted {
		// An earlier process has staged it, and a pod uses it. The pod goes on while the
		// driver is away.
		p.Logger.Warn("cannot ask the driver of a volume that is in use; trying again", "volume", specName(v), "err",
			err)
		return nil
	}
	return err
}

func (p *Plugin) stage(ctx context.Context, v *volumes.Volume, label string) error {
	if err := p.relabel(ctx, v, label); err != nil {
		return err
	}
	s, err := p.open(ctx, driverOf(v))
	if err != nil {
		return err
	}
	defer s.close()
	if s.can(stages) {
		if err := p.askToStage(ctx, s, v, label); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.staged[v.Staged] = label
	return nil
}

// labelOf returns the SELinux label for a driver's mount of a volume, or "" where the runtime
// labels the files. A volume that the pod describes itself is no other pod's, and small.
func (p *Plugin) labelOf(ctx context.Context, v *volumes.Volume) (string, error) {
	if v.Label == nil || v.PV == nil || v.Block() {
		return "", nil
	}
	label, labelErr := v.Label()
	if label == "" && labelErr == nil {
		return "", nil
	}
	spec, err := p.spec(ctx, driverOf(v))
	if err != nil || spec == nil || !isTrue(spec.Spec.SELinuxMount) {
		return "", err
	}
	return label, labelErr
}

// notedLabel returns the SELinux label with which a volume was staged.
func (p *Plugin) notedLabel(v *volumes.Volume) (string, error) {
	data, err := loadData(p.stagingData(v))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return data[dataLabel], err
}

// relabel unstages a volume that is staged with another SELinux label. The kernel does not mount
// one file system with two labels, so that pods with different ones have it after each other.
func (p *Plugin) relabel(ctx context.Context, v *volumes.Volume, label string) error {
	staged, err := known(p.stagingData(v))
	if err != nil || !staged {
		return err
	}
	have, err := p.notedLabel(v)
	if err != nil || have == label {
		return err
	}
	all, err := p.records()
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.Staged != v.Staged || other.Pod == v.Pod {
			continue
		}
		has, err := p.begun(other)
		if err != nil {
			return err
		}
		if has {
			return fmt.Errorf(
				"conflicting SELinux labels of volume %s: pod %s on this node has it with %q, and this pod needs %q",
				specName(v), other.Pod, have, label)
		}
	}
	return p.unstage(ctx, v)
}

func (p *Plugin) askToStage(ctx context.Context, s *session, v *volumes.Volume, label string) error {
	published, err := p.publishContext(ctx, v)
	if err != nil {
		return err
	}
	secrets, err := p.secret(ctx, "NodeStageSecretRef", v.PV.Spec.CSI.NodeStageSecretRef)
	if err != nil {
		return err
	}
	notes := p.stagingData(v)
	again, err := known(notes)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(v.Staged, 0o750); err != nil {
		return err
	}
	data := map[string]string{dataDriver: driverOf(v), dataHandle: handleOf(v)}
	if v.Block() {
		data = p.dataOf(v)
	}
	if label != "" {
		data[dataLabel] = label
	}
	if err := saveData(notes, data); err != nil {
		return err
	}
	how := useOf(v, nil, label)
	_, err = s.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: handleOf(v), PublishContext: published, StagingTargetPath: v.Staged,
		VolumeCapability: s.capabilityOf(how),
		Secrets:          secrets, VolumeContext: v.PV.Spec.CSI.VolumeAttributes,
	})
	if err == nil {
		return nil
	}
	if final(err) && !again {
		return errors.Join(err, p.unnote(v))
	}
	return err
}

// unnote removes the record that a volume is staged.
func (p *Plugin) unnote(v *volumes.Volume) error {
	if err := p.empty(v.Staged); err != nil {
		return err
	}
	if v.Block() {
		// Each pod has had its place below it. It is empty when all of them are rid of the volume.
		if err := removeEmpty(filepath.Join(p.devices(), "publish", v.PV.Name)); err != nil {
			return err
		}
	}
	if err := forgetData(p.stagingData(v)); err != nil {
		return err
	}
	if v.Block() {
		return removeEmpty(filepath.Dir(p.stagingData(v)))
	}
	return nil
}

// empty removes the place of a volume. Files in it would be the volume's own, still mounted.
func (p *Plugin) empty(place string) error {
	mounted, err := p.Mounts.Mounted(place)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("the driver says that it has unmounted %s, which is mounted", place)
	}
	return removeEmpty(place)
}

// Unstage implements volumes.Stager.
func (p *Plugin) Unstage(v *volumes.Volume) error {
	err := p.one(p.ctx, driverOf(v), handleOf(v), "unmount_device",
		func(ctx context.Context) error { return p.unstage(ctx, v) })
	if err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.growing, string(uniqueName(driverOf(v), handleOf(v))))
	p.mu.Unlock()
	return nil
}

func (p *Plugin) unstage(ctx context.Context, v *volumes.Volume) error {
	p.mu.Lock()
	delete(p.staged, v.Staged)
	p.mu.Unlock()
	staged, err := known(p.stagingData(v))
	if err != nil {
		return err
	}
	if staged {
		s, err := p.open(ctx, driverOf(v))
		if err != nil {
			return err
		}
		defer s.close()
		if s.can(stages) {
			if _, err := s.NodeUnstageVolume(ctx,
				&csipb.NodeUnstageVolumeRequest{VolumeId: handleOf(v), StagingTargetPath: v.Staged}); err != nil {
				return err
			}
		}
	}
	return p.unnote(v)
}

// secret reads a Secret that a volume names.
func (p *Plugin) secret(ctx context.Context, what string, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	have, err := p.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", what, ref.Namespace, ref.Name, err)
	}
	values := make(map[string]string, len(have.Data))
	for key, value := range have.Data {
		values[key] = string(value)
	}
	return values, nil
}

// dataOf is the record of a pod's volume on disk.
func (p *Plugin) dataOf(v *volumes.Volume) map[string]string {
	data := map[string]string{
		dataSpec: specName(v), dataHandle: handleOf(v), dataDriver: driverOf(v), dataNode: p.NodeName,
		dataAttachment: attachmentName(handleOf(v), driverOf(v), p.NodeName),
	}
	if !v.Block() {
		data[dataLifecycle] = string(lifecycleOf(v))
	}
	return data
}

// orphan is a staged volume that no pod of the node has.
type orphan struct {
	driver, handle, place string
}

// findOrphans looks once for volumes that an earlier kubelet has staged and no record of a pod
// names. A volume with a record is unstaged when the last pod is rid of it.
func (p *Plugin) findOrphans() {
	p.mu.Lock()
	found := p.found
	p.mu.Unlock()
	if found {
		return
	}
	orphans, err := p.lookForOrphans()
	if err != nil {
		p.Logger.Warn("cannot tell which volumes are staged; trying again", "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.found {
		p.found, p.orphans = true, orphans
	}
}

func (p *Plugin) lookForOrphans() (map[v1.UniqueVolumeName]*orphan, error) {
	all, err := p.records()
	if err != nil {
		return nil, err
	}
	owned := map[string]bool{}
	for _, v := range all {
		owned[v.Staged] = true
	}
	pattern := filepath.Join(p.root, "plugins", pluginName, "*", "*", dataFile)
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	orphans := map[v1.UniqueVolumeName]*orphan{}
	for _, path := range paths {
		dir := filepath.Dir(path)
		place := filepath.Join(dir, "globalmount")
		if owned[place] {
			continue
		}
		data, err := loadData(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o := &orphan{data[dataDriver], data[dataHandle], place}
		orphans[uniqueName(o.driver, o.handle)] = o
	}
	devices, err := filepath.Glob(filepath.Join(p.devices(), "*", "data", dataFile))
	if err != nil {
		return nil, err
	}
	for _, path := range devices {
		data, err := loadData(filepath.Dir(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		place := filepath.Join(p.devices(), "staging", filepath.Base(filepath.Dir(filepath.Dir(path))))
		if !owned[place] {
			o := &orphan{data[dataDriver], data[dataHandle], place}
			orphans[uniqueName(o.driver, o.handle)] = o
		}
	}
	return orphans, nil
}

// adopt unstages the orphans whose drivers are there. One that a pod has got meanwhile is no orphan
// any more.
func (p *Plugin) adopt(ctx context.Context) (errs error) {
	p.findOrphans()
	p.mu.Lock()
	orphans := maps.Clone(p.orphans)
	p.mu.Unlock()
	for name, o := range orphans {
		if _, err := p.drivers.get(o.driver); err != nil {
			continue
		}
		err := p.one(ctx, o.driver, o.handle, "unmount_device", func(ctx context.Context) error {
			all, err := p.records()
			if err != nil {
				return err
			}
			for _, v := range all {
				if v.Staged == o.place {
					return nil
				}
			}
			return p.unstage(ctx, o.volume())
		})
		if err != nil {
			errs = errors.Join(errs,
				fmt.Errorf("unstage volume %s of driver %s, which no pod has: %w", o.handle, o.driver, err))
			continue
		}
		p.mu.Lock()
		delete(p.orphans, name)
		p.mu.Unlock()
		p.Look()
	}
	return errs
}

// volume returns the part of a volume that unstaging needs.
func (o *orphan) volume() *volumes.Volume {
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: o.driver, VolumeHandle: o.handle},
	}}}
	if filepath.Base(filepath.Dir(o.place)) == "staging" {
		pv.Name, pv.Spec.VolumeMode = filepath.Base(o.place), new(v1.PersistentVolumeBlock)
	}
	return &volumes.Volume{PV: pv, Staged: o.place}
}

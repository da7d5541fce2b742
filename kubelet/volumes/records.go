package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/atomicfile"
)

// record is the record on disk of a pod's volume that comes from a claim or has a Stager, in
// claims/<volume>.json of the pod's directory. It is written before the volume is set up, and goes
// when it has been torn down. So a pod goes on while no API server answers, its volumes can be torn
// down after their claims are gone, and a shared volume is in use for as long as there is a record
// of it.
type record struct {
	Plugin   string                   `json:"plugin"`
	Claim    string                   `json:"claim,omitempty"`
	PV       string                   `json:"pv,omitempty"`
	UID      types.UID                `json:"uid,omitempty"`
	ReadOnly bool                     `json:"readOnly,omitempty"`
	Staged   bool                     `json:"staged,omitempty"`
	Marks    map[string]string        `json:"annotations,omitempty"`
	Spec     *v1.PersistentVolumeSpec `json:"spec,omitempty"`
	Source   *v1.VolumeSource         `json:"source,omitempty"` // of a volume without a claim
}

const recordSuffix = ".json"

func (m *Manager) recordPath(uid types.UID, volume string) string {
	return filepath.Join(m.PodDir(uid), "claims", volume+recordSuffix)
}

// remember writes the record of a volume.
func (m *Manager) remember(uid types.UID, plugin string, v *Volume) error {
	r := record{Plugin: plugin, Source: v.Source}
	if pv := v.PV; pv != nil {
		r = record{
			Plugin: plugin, Claim: v.Claim, PV: pv.Name, UID: pv.UID, ReadOnly: v.ReadOnly, Staged: v.Staged != "",
			Marks: pv.Annotations, Spec: &pv.Spec,
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	defer m.rewritten(v)
	if err := atomicfile.Write(m.recordPath(uid, v.Name), data, 0o600); err != nil {
		return fmt.Errorf("remember the volume on disk: %w", err)
	}
	return nil
}

// rewritten reports that the record of a volume has changed or is gone.
func (m *Manager) rewritten(v *Volume) {
	m.mu.Lock()
	m.written++
	m.mu.Unlock()
	if m.changed != nil {
		m.changed(v)
	}
}

// Records is Remembered for frequent callers: the disk is read only after a record has changed.
func (m *Manager) Records() ([]*Volume, error) {
	m.mu.Lock()
	known, written := m.records, m.written+1
	fresh := m.read == written
	m.mu.Unlock()
	if fresh {
		return known, nil
	}
	all, err := m.Remembered()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records, m.read = all, written
	return all, nil
}

// reconstruct returns a pod's volume as its record has it, with its plugin, or nil when there is no
// record.
func (m *Manager) reconstruct(uid types.UID, volume string) (*Volume, Plugin, error) {
	path := m.recordPath(uid, volume)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, nil, fmt.Errorf("%s: %w; unmount the volume by hand and remove the file", path, err)
	}
	plugin := m.named(r.Plugin)
	if plugin == nil {
		return nil, nil, fmt.Errorf("%s: no plugin %q; unmount the volume by hand and remove the file", path, r.Plugin)
	}
	v := &Volume{Name: volume, Claim: r.Claim, ReadOnly: r.ReadOnly, Source: r.Source}
	if r.Spec != nil {
		v.PV = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: r.PV, UID: r.UID, Annotations: r.Marks},
			Spec: *r.Spec}
	}
	m.locate(uid, plugin, v, r.Staged)
	return v, plugin, nil
}

// forgetRecord removes the record of a volume that is torn down.
func (m *Manager) forgetRecord(v *Volume) error {
	defer m.rewritten(v)
	return atomicfile.Remove(m.recordPath(v.Pod, v.Name))
}

// remembered lists a pod's volumes that have a record.
func (m *Manager) remembered(uid types.UID) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(m.PodDir(uid), "claims"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var volumes []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok {
			volumes = append(volumes, name)
		}
	}
	return volumes, err
}

// InUse reports whether some pod of the node has a volume, or is not rid of it yet.
func (m *Manager) InUse(pv string) (bool, error) {
	n, err := m.users(pv, "", "")
	return n > 0 || err != nil, err
}

// users counts the volumes of pods that come from a PV, but for one.
func (m *Manager) users(pv string, except types.UID, volume string) (int, error) {
	all, err := m.Remembered()
	n := 0
	for _, v := range all {
		if v.PV != nil && v.PV.Name == pv && (v.Pod != except || v.Name != volume) {
			n++
		}
	}
	return n, err
}

// Remembered lists the volumes of all pods of which the disk has a record: those that the node has,
// or is not rid of yet.
func (m *Manager) Remembered() ([]*Volume, error) {
	uids, err := m.Pods()
	if err != nil {
		return nil, err
	}
	var all []*Volume
	for _, uid := range uids {
		names, err := m.remembered(uid)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			v, _, err := m.reconstruct(uid, name)
			if err != nil {
				return nil, err
			}
			if v != nil {
				all = append(all, v)
			}
		}
	}
	return all, nil
}

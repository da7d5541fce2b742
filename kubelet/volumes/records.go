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

// record is what the disk remembers of a pod's volume that comes from a claim, in
// claims/<volume>.json of the pod's directory. It is written before the volume is set up, and goes
// when it has been torn down. So a pod goes on while no API server answers, its volumes are torn
// down though nobody knows their claims any more, and what pods of the node share is in use for as
// long as there is a record of it.
type record struct {
	Plugin   string                  `json:"plugin"`
	Claim    string                  `json:"claim"`
	PV       string                  `json:"pv"`
	UID      types.UID               `json:"uid"`
	ReadOnly bool                    `json:"readOnly,omitempty"`
	Staged   bool                    `json:"staged,omitempty"`
	Marks    map[string]string       `json:"annotations,omitempty"`
	Spec     v1.PersistentVolumeSpec `json:"spec"`
}

const recordSuffix = ".json"

func (m *Manager) recordPath(uid types.UID, volume string) string {
	return filepath.Join(m.PodDir(uid), "claims", volume+recordSuffix)
}

// remember writes the record of a volume.
func (m *Manager) remember(uid types.UID, plugin string, v *Volume) error {
	data, err := json.Marshal(record{
		Plugin: plugin, Claim: v.Claim, PV: v.PV.Name, UID: v.PV.UID, ReadOnly: v.ReadOnly, Staged: v.Staged != "", Marks: v.PV.Annotations, Spec: v.PV.Spec,
	})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(m.recordPath(uid, v.Name), data, 0o600); err != nil {
		return fmt.Errorf("remember the volume on disk: %w", err)
	}
	return nil
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
	v := &Volume{
		Name: volume, Claim: r.Claim, ReadOnly: r.ReadOnly,
		PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: r.PV, UID: r.UID, Annotations: r.Marks}, Spec: r.Spec},
	}
	m.locate(uid, plugin, v, r.Staged)
	return v, plugin, nil
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

// InUse tells whether some pod of the node has a volume, or is not rid of it yet.
func (m *Manager) InUse(pv string) (bool, error) {
	n, err := m.users(pv, "", "")
	return n > 0 || err != nil, err
}

// users counts the volumes of pods that come from a PV, but for one.
func (m *Manager) users(pv string, except types.UID, volume string) (int, error) {
	uids, err := m.Pods()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, uid := range uids {
		names, err := m.remembered(uid)
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			if uid == except && name == volume {
				continue
			}
			v, _, err := m.reconstruct(uid, name)
			if err != nil {
				return 0, err
			}
			if v != nil && v.PV.Name == pv {
				n++
			}
		}
	}
	return n, nil
}

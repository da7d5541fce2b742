package volumes

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// VolumeUsage is the measured usage of one volume of a pod.
type VolumeUsage struct {
	Name  string // in the pod
	Claim string // "" for a volume that the pod describes itself
	At    time.Time
	diskusage.Usage
}

const (
	// measureEvery is the age of measurements: adding up the files of a volume takes time.
	measureEvery = time.Minute
	// measurePatience bounds the wait for the first measurement.
	measurePatience = time.Second
)

// measured is the measurement of a pod's volumes.
type measured struct {
	volumes []VolumeUsage
	at      time.Time     // when the last measurement was over
	pause   time.Duration // before the next one
	done    chan struct{} // closed when the measurement that runs is over; nil while none runs
	stop    context.CancelFunc
}

// Stats returns the usage of a pod's volumes. It waits for the first measurement only. Figures may
// be a minute old. They are older when a measurement takes longer: at most half of the time is
// spent on measuring. A file system that does not answer delays only the measurements of its pod.
func (m *Manager) Stats(ctx context.Context, pod *v1.Pod) []VolumeUsage {
	m.mu.Lock()
	known := m.usage[pod.UID]
	if known == nil {
		if len(m.resolved[pod.UID]) == 0 {
			m.mu.Unlock()
			return nil
		}
		known = &measured{}
		m.usage[pod.UID] = known
	}
	if known.done == nil && time.Since(known.at) >= known.pause {
		known.done = make(chan struct{})
		var measuring context.Context
		measuring, known.stop = context.WithCancel(context.Background())
		go m.measure(measuring, pod.UID, known, known.done) // ends with the measurement, or with the pod's volumes
	}
	done, first := known.done, known.at.IsZero()
	m.mu.Unlock()
	if done != nil && first {
		patience := time.NewTimer(measurePatience)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(known.volumes)
}

func (m *Manager) measure(ctx context.Context, uid types.UID, into *measured, done chan struct{}) {
	began := time.Now()
	m.mu.Lock()
	list := slices.Collect(maps.Values(m.resolved[uid]))
	paths := make(map[string]string, len(list))
	for _, r := range list {
		paths[r.Name] = r.path
	}
	m.mu.Unlock()
	var volumes []VolumeUsage
	for _, r := range list {
		if paths[r.Name] == "" {
			continue // it is not set up yet
		}
		// A volume that cannot be measured, or is being removed, is left out.
		if u, err := r.plugin.Usage(ctx, r.Volume, paths[r.Name]); err == nil && u != nil {
			volumes = append(volumes, VolumeUsage{Name: r.Name, Claim: r.Claim, At: time.Now(), Usage: *u})
		}
	}
	slices.SortFunc(volumes, func(a, b VolumeUsage) int { return strings.Compare(a.Name, b.Name) })
	m.mu.Lock()
	into.volumes, into.at, into.done = volumes, time.Now(), nil
	into.pause = max(measureEvery, into.at.Sub(began))
	into.stop()
	m.mu.Unlock()
	close(done)
}

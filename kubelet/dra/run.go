package dra

import (
	"context"
	"log/slog"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/barque/barque/internal/logline"
	"github.com/barque/barque/kubelet/plugins"
)

var _ plugins.Handler = (*Manager)(nil)

// Register takes a driver.
func (m *Manager) Register(_ context.Context, p plugins.Plugin) error {
	if err := m.drivers.add(p); err != nil {
		return err
	}
	m.Logger.Info("a driver of devices has registered", "driver", p.Name, "socket", p.Endpoint)
	return nil
}

// Deregister forgets a driver whose socket is gone.
func (m *Manager) Deregister(p plugins.Plugin) {
	if x := m.drivers.remove(p); x != nil {
		x.conn.Close()
		m.Logger.Info("a driver of devices is gone", "driver", p.Name, "socket", p.Endpoint)
	}
}

// all stands for every driver.
const all = ""

// Run withdraws the devices of drivers that do not come back, until ctx ends. The scheduler must
// not choose a device that no driver can prepare. Run begins with the devices of all drivers,
// because none has registered with this process yet: a present driver offers its devices again.
func (m *Manager) Run(ctx context.Context) error {
	defer m.drivers.close()
	tick := time.NewTicker(absence)
	defer tick.Stop()
	pending := sets.New(all)
	for {
		for _, name := range sets.List(pending) {
			if _, err := m.drivers.get(name); err == nil {
				pending.Delete(name) // it is back
				continue
			}
			if err := m.withdraw(ctx, name); err != nil {
				m.complain(ctx, "cannot withdraw the devices of a driver that is gone; trying again", name, err)
				continue
			}
			pending.Delete(name)
		}
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			pending.Insert(m.drivers.goneFor(absence, now)...)
		}
	}
}

func (m *Manager) complain(ctx context.Context, what, driver string, err error) {
	if ctx.Err() == nil {
		logline.Log(m.Logger, slog.LevelWarn, what, "driver", driver, "err", err)
	}
}

// withdraw deletes the slices that a driver, or all, have for this node.
func (m *Manager) withdraw(ctx context.Context, driver string) error {
	of := fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.NodeName}
	if driver != all {
		of[resourcev1.ResourceSliceSelectorDriver] = driver
	}
	return m.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		FieldSelector: fields.SelectorFromSet(of).String(),
	})
}

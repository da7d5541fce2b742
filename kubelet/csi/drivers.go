package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/barque/barque/kubelet/plugins"
)

// drivers are the registered drivers, by name.
type drivers struct {
	mu     sync.Mutex
	byName map[string]driver
}

type driver struct {
	endpoint string
	version  *version.Version
}

// notRegistered is returned when the driver of a volume is not registered.
type notRegistered struct{ driver string }

func (e notRegistered) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers", e.driver)
}

func (d *drivers) get(name string) (driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, ok := d.byName[name]
	if !ok {
		return driver{}, notRegistered{name}
	}
	return have, nil
}

// all returns a copy.
func (d *drivers) all() map[string]driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.byName)
}

func (d *drivers) set(name string, to driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[name] = to
}

// remove forgets a driver, unless another instance has registered under its name.
func (d *drivers) remove(name, endpoint string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byName[name].endpoint != endpoint {
		return false
	}
	delete(d.byName, name)
	return true
}

var _ plugins.Handler = (*Plugin)(nil)

// Register takes a driver: the Node and the CSINode object name it before its volumes are used. It
// replaces one of the same name unless that speaks a newer version.
func (p *Plugin) Register(ctx context.Context, found plugins.Plugin) error {
	newest, err := version.HighestSupportedVersion(found.Versions)
	if err != nil {
		return fmt.Errorf("CSI driver %s: none of the versions %q is supported: %w", found.Name, found.Versions, err)
	}
	if have, err := p.drivers.get(found.Name); err == nil && have.endpoint != found.Endpoint &&
		newest.LessThan(have.version) {
		return fmt.Errorf(
			"CSI driver %s at %s: another one with the same name is registered with the higher version %s", found.Name,
			found.Endpoint, have.version)
	}
	s, err := p.dial(found.Name, found.Endpoint)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := s.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("NodeGetInfo of CSI driver %s: %w", found.Name, err)
	}
	if info.NodeId == "" {
		return fmt.Errorf("CSI driver %s has no ID for this node", found.Name)
	}
	if err := p.objects.install(ctx, found.Name, info); err != nil {
		return fmt.Errorf("make CSI driver %s known: %w", found.Name, err)
	}
	p.drivers.set(found.Name, driver{found.Endpoint, newest})
	p.Logger.Info("a CSI driver has registered", "driver", found.Name, "socket", found.Endpoint, "node", info.NodeId,
		"volumes", info.MaxVolumesPerNode)
	p.stir()
	all, err := p.records()
	if err != nil {
		p.Logger.Warn("cannot tell which pods wait for a CSI driver; they try again by themselves", "driver",
			found.Name, "err", err)
	}
	for _, v := range all {
		if p.Provides(v) && driverOf(v) == found.Name {
			p.Retry(v.Pod)
		}
	}
	return nil
}

// Deregister forgets a driver whose socket is gone. It is removed from the objects soon.
func (p *Plugin) Deregister(gone plugins.Plugin) {
	if !p.drivers.remove(gone.Name, gone.Endpoint) {
		return
	}
	p.Logger.Info("a CSI driver is gone", "driver", gone.Name, "socket", gone.Endpoint)
	p.mu.Lock()
	p.leaving[gone.Name] = true
	p.mu.Unlock()
	p.stir()
}

// withdraw removes the drivers that are gone from the objects.
func (p *Plugin) withdraw(ctx context.Context) (errs error) {
	p.mu.Lock()
	var names []string
	for name := range p.leaving {
		names = append(names, name)
	}
	p.mu.Unlock()
	for _, name := range names {
		_, err := p.drivers.get(name)
		if err != nil {
			if err := p.objects.uninstall(ctx, name); err != nil {
				errs = errors.Join(errs, fmt.Errorf("withdraw CSI driver %s: %w", name, err))
				continue
			}
		}
		p.mu.Lock()
		delete(p.leaving, name)
		p.mu.Unlock()
	}
	return errs
}

package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/barque/barque/kubelet/plugins"
)

// callTimeout bounds one call of a driver.
const callTimeout = 45 * time.Second

// services are the versions of a driver's service, the best first. Their messages are the same on
// the wire.
var services = []struct{ version, prepare, unprepare string }{
	{drapb.DRAPluginService, drapb.DRAPlugin_NodePrepareResources_FullMethodName,
		drapb.DRAPlugin_NodeUnprepareResources_FullMethodName},
	{drapbv1beta1.DRAPluginService, drapbv1beta1.DRAPlugin_NodePrepareResources_FullMethodName,
		drapbv1beta1.DRAPlugin_NodeUnprepareResources_FullMethodName},
}

// drivers are the registered drivers, by name. Of several instances of one the newest is used: an
// update may start it before the old one ends.
type drivers struct {
	mu     sync.Mutex
	byName map[string][]*driver
	since  map[string]time.Time // when the last instance went
}

type driver struct {
	endpoint           string
	prepare, unprepare string // methods
	conn               *grpc.ClientConn
}

func newDrivers() *drivers {
	return &drivers{byName: map[string][]*driver{}, since: map[string]time.Time{}}
}

func (d *drivers) add(p plugins.Plugin) error {
	for _, s := range services {
		if !slices.Contains(p.Versions, s.version) {
			continue
		}
		conn, err := grpc.NewClient("unix://"+p.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		old := d.remove(p)
		if old != nil {
			old.conn.Close()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.byName[p.Name] = append(d.byName[p.Name],
			&driver{endpoint: p.Endpoint, prepare: s.prepare, unprepare: s.unprepare, conn: conn})
		delete(d.since, p.Name)
		return nil
	}
	return fmt.Errorf("driver %s offers %q: want one of %q and %q", p.Name, p.Versions, services[0].version,
		services[1].version)
}

func (d *drivers) remove(p plugins.Plugin) *driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.byName[p.Name]
	i := slices.IndexFunc(list, func(x *driver) bool { return x.endpoint == p.Endpoint })
	if i < 0 {
		return nil
	}
	gone := list[i]
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(d.byName, p.Name)
		d.since[p.Name] = time.Now()
	} else {
		d.byName[p.Name] = list
	}
	return gone
}

func (d *drivers) get(name string) (*driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if list := d.byName[name]; len(list) > 0 {
		return list[len(list)-1], nil
	}
	return nil, fmt.Errorf("DRA driver %s is not registered", name)
}

// goneFor returns the drivers that have been gone for a time, and forgets them.
func (d *drivers) goneFor(while time.Duration, now time.Time) (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, since := range d.since {
		if now.Sub(since) >= while {
			names = append(names, name)
			delete(d.since, name)
		}
	}
	return names
}

func (d *drivers) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, list := range d.byName {
		for _, x := range list {
			x.conn.Close()
		}
	}
}

// prepare has one driver prepare its devices of a claim.
func (d *drivers) prepare(ctx context.Context, name string, claim *resourcev1.ResourceClaim) ([]*device, error) {
	x, err := d.get(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := &drapb.NodePrepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}}
	response := &drapb.NodePrepareResourcesResponse{}
	if err := x.conn.Invoke(ctx, x.prepare, request, response); err != nil {
		return nil, fmt.Errorf("NodePrepareResources of driver %s: %w", name, err)
	}
	answer := response.Claims[string(claim.UID)]
	switch {
	case answer == nil:
		return nil, fmt.Errorf("NodePrepareResources of driver %s answers nothing about the claim", name)
	case answer.Error != "":
		return nil, fmt.Errorf("NodePrepareResources of driver %s: %w", name, errors.New(answer.Error))
	}
	devices := make([]*device, 0, len(answer.Devices))
	for _, a := range answer.Devices {
		devices = append(devices, &device{Requests: a.RequestNames, CDI: a.CdiDeviceIds})
	}
	return devices, nil
}

func (d *drivers) unprepare(ctx context.Context, name string, claim *drapb.Claim) error {
	x, err := d.get(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response := &drapb.NodeUnprepareResourcesResponse{}
	if err := x.conn.Invoke(ctx, x.unprepare, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}},
		response); err != nil {
		return fmt.Errorf("NodeUnprepareResources of driver %s: %w", name, err)
	}
	answer := response.Claims[claim.Uid]
	switch {
	case answer == nil:
		return fmt.Errorf("NodeUnprepareResources of driver %s answers nothing about the claim", name)
	case answer.Error != "":
		return fmt.Errorf("NodeUnprepareResources of driver %s: %w", name, errors.New(answer.Error))
	}
	return nil
}

package services

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
)

// picker chooses values for one Service, as of one view.
type picker struct {
	a       *Allocator
	view    raftstore.View
	cidrs   []*serviceCIDR
	service *corev1.Service
	// choices are those of the request, which keeps them for a second try.
	choices *choices
	// ports are the node ports of this Service, old and new.
	ports map[int32]bool
}

// pick has fill choose for s by this server's state. A refusal may be about a value that another
// server has freed since, so fill is called again with the newest state.
func (a *Allocator) pick(ctx context.Context, s *corev1.Service, fill func(*picker) error) error {
	view, err := a.view(ctx)
	if err != nil {
		return err
	}
	spec := s.Spec.DeepCopy()
	if p, err := a.newPicker(ctx, s, view); err != nil || fill(p) == nil {
		return err
	}
	s.Spec = *spec
	if view, err = a.cfg.Backend.View(ctx, raftstore.ViewOptions{}); err != nil {
		return storeerror.OfRead(err)
	}
	p, err := a.newPicker(ctx, s, view)
	if err != nil {
		return err
	}
	return fill(p)
}

// newPicker also drops the choices of an earlier try of the same request.
func (a *Allocator) newPicker(ctx context.Context, s *corev1.Service, view raftstore.View) (*picker, error) {
	cidrs, err := a.cidrs.in(ctx, view)
	if err != nil {
		return nil, err
	}
	c := choicesOf(ctx)
	*c = choices{map[netip.Addr]bool{}, map[int32]bool{}}
	return &picker{a: a, view: view, cidrs: cidrs, service: s, choices: c, ports: map[int32]bool{}}, nil
}

func (p *picker) invalid(at *field.Path, value any, cause string) error {
	return apierrors.NewInvalid(serviceKind, p.service.Name, field.ErrorList{field.Invalid(at, value, cause)})
}

// addAddresses completes the addresses of a Service whose families are known.
func (p *picker) addAddresses() error {
	spec := &p.service.Spec
	if spec.Type == corev1.ServiceTypeExternalName ||
		len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return nil
	}
	ips := make([]string, max(len(spec.ClusterIPs), len(spec.IPFamilies)))
	copy(ips, spec.ClusterIPs)
	for i, family := range spec.IPFamilies {
		ip, err := p.address(family, ips[i])
		if err != nil {
			return err
		}
		ips[i] = ip
	}
	spec.ClusterIPs = ips
	if len(ips) > 0 {
		spec.ClusterIP = ips[0]
	}
	return nil
}

// address returns the address that is wanted, if it may be had, or any one for "".
func (p *picker) address(family corev1.IPFamily, wanted string) (string, error) {
	at := field.NewPath("spec", "clusterIPs")
	if wanted == "" {
		chosen, err := p.chooseAddress(family)
		if err != nil {
			return "",
				apierrors.NewInternalError(
					fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", p.service.Name, err))
		}
		return chosen.String(), nil
	}
	a, ok := parseAddress(wanted)
	if !ok {
		return "",
			p.invalid(at, p.service.Spec.ClusterIPs,
				fmt.Sprintf("failed to allocate IP %v: it cannot be parsed", wanted))
	}
	if err := p.mayHave(a); err != nil {
		return "", p.invalid(at, p.service.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", wanted, err))
	}
	return wanted, nil
}

// mayHave returns the reason why the Service may not get an address that its client requests.
func (p *picker) mayHave(a netip.Addr) error {
	switch {
	case readyFor(p.cidrs, a) == nil:
		return errOtherNetwork
	case !p.a.freeAddress(p.view, a):
		return errAddressTaken
	case p.a.reserved[a] != "" && p.a.reserved[a] != p.service.Namespace+"/"+p.service.Name:
		return fmt.Errorf("%w: it is that of the Service %s", errAddressTaken, p.a.reserved[a])
	}
	return nil
}

// chooseAddress chooses an address of a family. It fails with errFull.
func (p *picker) chooseAddress(family corev1.IPFamily) (netip.Addr, error) {
	for _, c := range p.cidrs {
		if !c.ready {
			continue
		}
		for _, r := range c.ranges {
			if familyOf(r.First()) != family {
				continue // without a check of each of its addresses
			}
			a, ok := r.Choose(func(a netip.Addr) bool {
				return p.a.reserved[a] == "" && p.a.freeAddress(p.view, a)
			})
			if ok {
				p.choices.addresses[a] = true
				return a, nil
			}
		}
	}
	return netip.Addr{}, errFull
}

// updateAddresses completes the addresses of a Service that had others. The write frees those that
// it no longer has.
func (p *picker) updateAddresses(old *corev1.Service) error {
	spec := &p.service.Spec
	switch {
	case keepsPreferredFamilies(p.service, old):
		return nil
	case old.Spec.Type == corev1.ServiceTypeExternalName && spec.Type != corev1.ServiceTypeExternalName:
		return p.addAddresses()
	case len(old.Spec.ClusterIPs) > 0 && old.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
		return nil
	case spec.Type == corev1.ServiceTypeExternalName:
		return nil
	case len(old.Spec.IPFamilies) != 1 || len(spec.IPFamilies) != 2:
		return nil
	}
	// It gets a second family.
	wanted := ""
	if len(spec.ClusterIPs) > 1 {
		wanted = spec.ClusterIPs[1]
	}
	ip, err := p.address(spec.IPFamilies[1], wanted)
	if err != nil {
		return err
	}
	spec.ClusterIPs = append(spec.ClusterIPs[:min(1, len(spec.ClusterIPs)):1], ip)
	return nil
}

// allocatesPorts reports whether ports without a node port get one.
func allocatesPorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && ptr.Deref(spec.AllocateLoadBalancerNodePorts, true)
}

func hasNodePorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
}

func needsHealthCheck(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer &&
		spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func portPath(i int) *field.Path { return field.NewPath("spec", "ports").Index(i).Child("nodePort") }

// initPorts completes the node ports of a new Service. Ports of the same number, such as those for
// TCP and UDP, share one.
func (p *picker) initPorts() error {
	spec := &p.service.Spec
	if hasNodePorts(spec) {
		shared := map[int32]int32{} // node ports by port
		if err := p.wantPorts(); err != nil {
			return err
		}
		for i := range spec.Ports {
			if port := &spec.Ports[i]; port.NodePort != 0 && shared[port.Port] == 0 {
				shared[port.Port] = port.NodePort
			}
		}
		for i := range spec.Ports {
			port := &spec.Ports[i]
			if port.NodePort != 0 || !allocatesPorts(spec) {
				continue
			}
			if shared[port.Port] == 0 {
				chosen, err := p.choosePort()
				if err != nil {
					return err
				}
				shared[port.Port] = chosen
			}
			port.NodePort = shared[port.Port]
		}
	}
	return p.healthCheckPort()
}

// updatePorts completes the node ports of a Service that had others.
func (p *picker) updatePorts(old *corev1.Service) error {
	spec := &p.service.Spec
	p.ports = holdingsOf(old).ports
	if hasNodePorts(spec) {
		if err := p.wantPorts(); err != nil {
			return err
		}
		for i := range spec.Ports {
			if port := &spec.Ports[i]; port.NodePort == 0 && allocatesPorts(spec) {
				chosen, err := p.choosePort()
				if err != nil {
					return err
				}
				port.NodePort = chosen
			}
		}
	}
	if needsHealthCheck(&old.Spec) {
		return nil
	}
	return p.healthCheckPort()
}

// wantPorts checks the client's values, before anything is chosen.
func (p *picker) wantPorts() error {
	for i, port := range p.service.Spec.Ports {
		if port.NodePort == 0 || p.ports[port.NodePort] {
			continue
		}
		if err := p.wantPort(port.NodePort, portPath(i)); err != nil {
			return err
		}
	}
	return nil
}

func (p *picker) wantPort(port int32, at *field.Path) error {
	switch {
	case !p.a.ports.Contains(port):
		return p.invalid(at, port,
			fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s", p.a.ports))
	case !freePort(p.view, port):
		return p.invalid(at, port, errPortTaken.Error())
	}
	p.ports[port] = true
	return nil
}

func (p *picker) choosePort() (int32, error) {
	port, ok := p.a.ports.Choose(func(port int32) bool { return !p.ports[port] && freePort(p.view, port) })
	if !ok {
		return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", errFull))
	}
	p.ports[port] = true
	p.choices.ports[port] = true
	return port, nil
}

// healthCheckPort completes the port at which load balancers check whether a node has endpoints.
func (p *picker) healthCheckPort() error {
	spec := &p.service.Spec
	if !needsHealthCheck(spec) {
		return nil
	}
	if port := spec.HealthCheckNodePort; port != 0 {
		if p.ports[port] {
			return nil // its own
		}
		return p.wantPort(port, field.NewPath("spec", "healthCheckNodePort"))
	}
	port, err := p.choosePort()
	spec.HealthCheckNodePort = port
	return err
}

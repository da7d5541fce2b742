package fakeaws

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
)

// Balancer is a classic load balancer.
type Balancer struct {
	Name, DNSName string
	Listeners     []Listener
	Instances     []string // IDs of the targets
	Groups        []string // IDs of security groups
	Target        string   // of the health check: TCP:PORT, or HTTP:PORT/PATH
	scheme        string
	subnets       []string
	tags          map[string]string
	check         [4]string // interval, time-out, and the thresholds of ill and of healthy
	attributes    attributes
}

func (b *Balancer) clone() Balancer {
	out := *b
	out.Listeners, out.Instances, out.Groups = slices.Clone(b.Listeners), slices.Clone(b.Instances),
		slices.Clone(b.Groups)
	out.tags = maps.Clone(b.tags)
	return out
}

// Listener forwards connections to a port of the targets.
type Listener struct {
	Port             string `xml:"LoadBalancerPort"`
	Protocol         string `xml:"Protocol"`
	InstancePort     string `xml:"InstancePort"`
	InstanceProtocol string `xml:"InstanceProtocol"`
}

// attributes are the settings of a load balancer that a cloud-controller-manager writes.
type attributes struct {
	CrossZone string `xml:"CrossZoneLoadBalancing>Enabled"`
	AccessLog string `xml:"AccessLog>Enabled"`
	Draining  string `xml:"ConnectionDraining>Enabled"`
	Idle      string `xml:"ConnectionSettings>IdleTimeout"`
}

// balancerActions are those of Elastic Load Balancing.
var balancerActions = map[string]func(c *Cloud, q query) (any, error){
	"DescribeLoadBalancers":               (*Cloud).describeBalancers,
	"CreateLoadBalancer":                  (*Cloud).createBalancer,
	"DeleteLoadBalancer":                  (*Cloud).deleteBalancer,
	"DescribeLoadBalancerAttributes":      balancerAction((*Balancer).describeAttributes),
	"ModifyLoadBalancerAttributes":        balancerAction((*Balancer).modifyAttributes),
	"ConfigureHealthCheck":                balancerAction((*Balancer).configureCheck),
	"CreateLoadBalancerListeners":         balancerAction((*Balancer).createListeners),
	"DeleteLoadBalancerListeners":         balancerAction((*Balancer).deleteListeners),
	"RegisterInstancesWithLoadBalancer":   (*Cloud).register,
	"DeregisterInstancesFromLoadBalancer": balancerAction((*Balancer).deregister),
}

func noBalancer(name string) error {
	return fault{"LoadBalancerNotFound", fmt.Sprintf("There is no ACTIVE Load Balancer named '%s'", name)}
}

// balancerAction is an action on the load balancer that the request names.
func balancerAction(do func(*Balancer, query) (any, error)) func(*Cloud, query) (any, error) {
	return func(c *Cloud, q query) (any, error) {
		b := c.balancers[q.get("LoadBalancerName")]
		if b == nil {
			return nil, noBalancer(q.get("LoadBalancerName"))
		}
		return do(b, q)
	}
}

// member is an element of a list.
type member struct {
	ID string `xml:"InstanceId"`
}

func (b *Balancer) members() []member {
	var all []member
	for _, id := range b.Instances {
		all = append(all, member{id})
	}
	return all
}

func (c *Cloud) describeBalancers(q query) (any, error) {
	type listener struct {
		Listener Listener `xml:"Listener"`
	}
	type check struct {
		Target    string `xml:"Target"`
		Interval  string `xml:"Interval"`
		Timeout   string `xml:"Timeout"`
		Unhealthy string `xml:"UnhealthyThreshold"`
		Healthy   string `xml:"HealthyThreshold"`
	}
	type described struct {
		Name      string     `xml:"LoadBalancerName"`
		DNSName   string     `xml:"DNSName"`
		Scheme    string     `xml:"Scheme"`
		Network   string     `xml:"VPCId"`
		Listeners []listener `xml:"ListenerDescriptions>member"`
		Subnets   []string   `xml:"Subnets>member"`
		Groups    []string   `xml:"SecurityGroups>member"`
		Instances []member   `xml:"Instances>member"`
		Check     check      `xml:"HealthCheck"`
	}
	var out struct {
		All []described `xml:"LoadBalancerDescriptions>member"`
	}
	for _, name := range q.list("LoadBalancerNames.member") {
		b := c.balancers[name]
		if b == nil {
			return nil, noBalancer(name)
		}
		d := described{Name: b.Name, DNSName: b.DNSName, Scheme: b.scheme, Network: Network, Subnets: b.subnets,
			Groups: b.Groups, Instances: b.members(),
			Check: check{b.Target, b.check[0], b.check[1], b.check[2], b.check[3]}}
		for _, l := range b.Listeners {
			d.Listeners = append(d.Listeners, listener{l})
		}
		out.All = append(out.All, d)
	}
	return out, nil
}

// listeners are those of a request. Protocols are in capitals in answers, whatever the request has.
func (q query) listeners() []Listener {
	var all []Listener
	_ = q.each("Listeners.member", func(at string) error { // it returns no error
		all = append(all, Listener{
			Port: q.get(at + "LoadBalancerPort"), Protocol: strings.ToUpper(q.get(at + "Protocol")),
			InstancePort:     q.get(at + "InstancePort"),
			InstanceProtocol: strings.ToUpper(q.get(at + "InstanceProtocol"))})
		return nil
	})
	return all
}

func (c *Cloud) createBalancer(q query) (any, error) {
	name := q.get("LoadBalancerName")
	if c.balancers[name] != nil {
		return nil, fault{"DuplicateLoadBalancerName", "Load Balancer named " + name + " already exists"}
	}
	b := &Balancer{Name: name, scheme: "internet-facing", Listeners: q.listeners(), subnets: q.list("Subnets.member"),
		Groups: q.list("SecurityGroups.member"), tags: q.tags("Tags.member"),
		check: [4]string{"30", "5", "2", "10"}, attributes: attributes{"false", "false", "false", "60"}}
	if len(b.Listeners) == 0 || !slices.Equal(b.subnets, []string{Subnet}) {
		return nil, fault{"ValidationError", "a load balancer has listeners and subnets of this cloud"}
	}
	for _, id := range b.Groups {
		if c.groups[id] == nil {
			return nil, fault{"InvalidSecurityGroup", "One or more security groups are invalid: " + id}
		}
	}
	b.Target = "TCP:" + b.Listeners[0].InstancePort
	c.made++
	// A cloud-controller-manager tells a classic load balancer by this form of the name.
	b.DNSName = fmt.Sprintf("%s-%d.%s.elb.amazonaws.com", name, c.made, Region)
	c.balancers[name] = b
	return struct {
		DNSName string `xml:"DNSName"`
	}{b.DNSName}, nil
}

// deleteBalancer succeeds also where there is none, as Amazon's does.
func (c *Cloud) deleteBalancer(q query) (any, error) {
	delete(c.balancers, q.get("LoadBalancerName"))
	return struct{}{}, nil
}

type attributesAnswer struct {
	Attributes attributes `xml:"LoadBalancerAttributes"`
}

func (b *Balancer) describeAttributes(query) (any, error) { return attributesAnswer{b.attributes}, nil }

func (b *Balancer) modifyAttributes(q query) (any, error) {
	for name := range q.values {
		attribute, ok := strings.CutPrefix(name, "LoadBalancerAttributes.")
		if !ok {
			continue
		}
		switch attribute {
		case "CrossZoneLoadBalancing.Enabled":
			b.attributes.CrossZone = q.get(name)
		case "AccessLog.Enabled":
			b.attributes.AccessLog = q.get(name)
		case "ConnectionDraining.Enabled":
			b.attributes.Draining = q.get(name)
		case "ConnectionSettings.IdleTimeout":
			b.attributes.Idle = q.get(name)
		default:
			return nil, notKnown("the attribute %s", attribute)
		}
	}
	return attributesAnswer{b.attributes}, nil
}

func (b *Balancer) configureCheck(q query) (any, error) {
	b.Target = q.get("HealthCheck.Target")
	b.check = [4]string{q.get("HealthCheck.Interval"), q.get("HealthCheck.Timeout"),
		q.get("HealthCheck.UnhealthyThreshold"), q.get("HealthCheck.HealthyThreshold")}
	return struct{}{}, nil
}

func (b *Balancer) createListeners(q query) (any, error) {
	for _, l := range q.listeners() {
		if slices.ContainsFunc(b.Listeners, func(have Listener) bool { return have.Port == l.Port }) {
			return nil, fault{"DuplicateListener", "A listener already exists for " + b.Name + " with port " + l.Port}
		}
		b.Listeners = append(b.Listeners, l)
	}
	return struct{}{}, nil
}

func (b *Balancer) deleteListeners(q query) (any, error) {
	ports := q.list("LoadBalancerPorts.member")
	b.Listeners = slices.DeleteFunc(b.Listeners, func(l Listener) bool { return slices.Contains(ports, l.Port) })
	return struct{}{}, nil
}

// instanceIDs are those of a request about targets.
func (q query) instanceIDs() []string {
	var all []string
	_ = q.each("Instances.member", func(at string) error { // it returns no error
		all = append(all, q.get(at+"InstanceId"))
		return nil
	})
	return all
}

type targets struct {
	Instances []member `xml:"Instances>member"`
}

func (c *Cloud) register(q query) (any, error) {
	b := c.balancers[q.get("LoadBalancerName")]
	if b == nil {
		return nil, noBalancer(q.get("LoadBalancerName"))
	}
	for _, id := range q.instanceIDs() {
		if i, ok := c.instances[id]; !ok || i.State == Terminated {
			return nil, fault{"InvalidInstance", fmt.Sprintf("Could not find EC2 instance %s.", id)}
		}
		if !slices.Contains(b.Instances, id) {
			b.Instances = append(b.Instances, id)
		}
	}
	slices.Sort(b.Instances)
	return targets{b.members()}, nil
}

func (b *Balancer) deregister(q query) (any, error) {
	for _, id := range q.instanceIDs() {
		b.Instances = without(b.Instances, id)
	}
	return targets{b.members()}, nil
}

// InService returns the targets of a load balancer that pass its health check now.
func (c *Cloud) InService(ctx context.Context, b Balancer) ([]string, error) {
	protocol, rest, ok := strings.Cut(b.Target, ":")
	port, path, _ := strings.Cut(rest, "/")
	if !ok || protocol != "TCP" && protocol != "HTTP" {
		return nil, fmt.Errorf("the health check of %s has the target %q", b.Name, b.Target)
	}
	var healthy []string
	for _, id := range b.Instances {
		c.mu.Lock()
		i := c.instances[id]
		c.mu.Unlock()
		at := net.JoinHostPort(i.PrivateIP, port)
		var err error
		if protocol == "TCP" {
			var conn net.Conn
			if conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at); err == nil {
				conn.Close()
			}
		} else {
			err = ask(ctx, "http://"+at+"/"+path)
		}
		if err == nil {
			healthy = append(healthy, id)
		}
	}
	return healthy, nil
}

// ask returns nil for the status 200, the one that counts for a health check.
func ask(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

package path

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/network/nodeaddr"
)

// Machine holds the findings on the path to a machine that is to be in one cluster with this one.
type Machine struct {
	Address netip.Addr
	Way     nodeaddr.Way
	// Largest packet that arrives, headers and all; 0 when no echo was answered.
	Largest int
	Ports   []Answered
}

// Answered is the finding on a port.
type Answered struct {
	Port    Port
	Contact Contact
}

// Explore asks a machine how it is reached. It takes half a minute at most.
func Explore(ctx context.Context, addr netip.Addr, ports []Port) (Machine, error) {
	m := Machine{Address: addr, Ports: make([]Answered, len(ports))}
	var err error
	if m.Way, err = nodeaddr.WayTo(addr); err != nil || m.Way.Own {
		return m, err
	}
	failed := make([]error, len(ports)+1)
	var asking sync.WaitGroup
	for i, port := range ports {
		asking.Go(func() { // ends within dialPatience
			m.Ports[i].Port = port
			m.Ports[i].Contact, failed[i] = Ask(ctx, addr, port)
		})
	}
	m.Largest, failed[len(ports)] = Largest(ctx, addr, m.Way.MTU)
	asking.Wait()
	for _, err := range failed {
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// Largest finds the largest packet that arrives, up to a size; 0 if none does.
func Largest(ctx context.Context, addr netip.Addr, size int) (int, error) {
	answer, err := Probe(ctx, addr, size)
	switch {
	case err != nil || answer == Silent:
		return 0, err
	case answer == Whole:
		return size, nil
	}
	arrives, lost := smallSize, size
	for lost-arrives > 1 {
		middle := (arrives + lost) / 2
		arrived, err := echo(ctx, addr, middle)
		if err != nil {
			return 0, fmt.Errorf("ask %v: %w", addr, err)
		}
		if arrived {
			arrives = middle
		} else {
			lost = middle
		}
	}
	return arrives, nil
}

// Findings converts the findings into results and remedies. It is pure.
func (m Machine) Findings() []check.Finding {
	name := fmt.Sprintf("path to %v", m.Address)
	if m.Way.Own {
		return []check.Finding{check.Passed(name, "it is this machine itself")}
	}
	if m.Largest == 0 && !m.answers() {
		return []check.Finding{check.Failed(name, "nothing answers there, neither ICMP echo nor a port",
			fmt.Sprintf(
				"start the machine, or give its right address; then let ICMP and the ports of docs/network.md pass (ping %v)", m.Address))}
	}
	findings := []check.Finding{m.size(name)}
	for _, p := range m.Ports {
		findings = append(findings, p.finding(m.Address))
	}
	return findings
}

// answers reports whether any port has answered.
func (m Machine) answers() bool {
	for _, p := range m.Ports {
		if p.Contact == Listens || p.Contact == Closed {
			return true
		}
	}
	return false
}

// size is about large packets.
func (m Machine) size(name string) check.Finding {
	switch {
	case m.Largest == 0:
		return check.Failed(name, "no ICMP echo is answered, though ports are",
			"let ICMP and ICMPv6 pass between the machines: without them senders do not learn which packets are too large")
	case m.Largest < m.Way.MTU:
		return check.Failed(name,
			fmt.Sprintf("packets of up to %d bytes arrive, and the link %s sends %d", m.Largest, m.Way.Link, m.Way.MTU),
			fmt.Sprintf(
				"give the links of all machines the MTU of the network between them, here: ip link set dev %s mtu %d",
				m.Way.Link, m.Largest))
	case m.Way.Direct:
		return check.Passed(name,
			fmt.Sprintf("packets of %d bytes arrive, with no router between: pods reach each other directly",
				m.Largest))
	}
	return check.Passed(name,
		fmt.Sprintf("packets of %d bytes arrive by a router: pods reach each other through the overlay", m.Largest))
}

// finding is about one port.
func (a Answered) finding(addr netip.Addr) check.Finding {
	kind := "TCP"
	if a.Port.UDP {
		kind = "UDP"
	}
	port := fmt.Sprintf("%s %d", kind, a.Port.Number)
	name := fmt.Sprintf("%s at %v", port, addr)
	open := fmt.Sprintf("let %s pass to %v from this machine (firewall, security group)", port, addr)
	switch {
	case a.Contact == Listens:
		return check.Passed(name, "answers: "+a.Port.For)
	case a.Contact == Closed:
		return check.Doubtful(name, "refused: nothing listens yet, or a firewall rejects it: "+a.Port.For,
			"if Barque runs there: "+open)
	case a.Port.ServerOnly:
		return check.Doubtful(name, fmt.Sprintf("%s: %s, which only servers have", a.Contact, a.Port.For),
			"if that machine is a server: "+open)
	case a.Contact == Rejected:
		return check.Failed(name, "something on the way rejects it: "+a.Port.For, open)
	case a.Port.UDP:
		return check.Doubtful(name, "no answer, as of a port in use or a closed way: "+a.Port.For,
			"after the join: barque cluster doctor")
	}
	return check.Failed(name, "no answer: "+a.Port.For, open)
}

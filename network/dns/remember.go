package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/atomicfile"
)

// rememberEvery is the interval of saving changes. A file older than the zone is only used if a
// node starts and reaches no server.
const rememberEvery = time.Minute

// memory is the saved state of the cluster, for a node that starts without a server: its pods run,
// and so do the services that they use.
type memory struct {
	Format     int               `json:"format"`
	Domain     string            `json:"domain"`
	Namespaces []string          `json:"namespaces"`
	Services   []savedService    `json:"services"`
	Slices     []savedSlice      `json:"slices"`
	Rules      map[string]string `json:"rules,omitempty"` // the last ones that were right
}

const memoryFormat = 1

type savedService struct {
	Namespace string       `json:"ns"`
	Name      string       `json:"name"`
	Addrs     []netip.Addr `json:"addrs,omitempty"`
	Headless  bool         `json:"headless,omitempty"`
	External  string       `json:"external,omitempty"`
	Unready   bool         `json:"unready,omitempty"`
	Ports     []savedPort  `json:"ports,omitempty"`
}

type savedSlice struct {
	Namespace string          `json:"ns"`
	Name      string          `json:"name"`
	Service   string          `json:"service"`
	Ports     []savedPort     `json:"ports,omitempty"`
	Endpoints []savedEndpoint `json:"endpoints,omitempty"`
}

type savedPort struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Number   uint16 `json:"number"`
}

type savedEndpoint struct {
	Addrs    []netip.Addr `json:"addrs"`
	Hostname string       `json:"hostname,omitempty"`
	Ready    bool         `json:"ready,omitempty"`
}

// save returns the state's contents.
func (s *state) save() memory {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m := memory{Format: memoryFormat, Namespaces: slices.Sorted(maps.Keys(s.namespaces))}
	for key, one := range s.services {
		m.Services = append(m.Services, savedService{
			Namespace: key.Namespace, Name: key.Name, Addrs: one.addrs, Headless: one.headless,
			External: one.externalName,
			Unready:  one.unready, Ports: savedPorts(one.ports),
		})
	}
	for key, all := range s.slices {
		for name, one := range all {
			saved := savedSlice{Namespace: key.Namespace, Name: name, Service: key.Name, Ports: savedPorts(one.ports)}
			for _, e := range one.endpoints {
				saved.Endpoints = append(saved.Endpoints, savedEndpoint{e.addrs, e.hostname, e.ready})
			}
			m.Slices = append(m.Slices, saved)
		}
	}
	return m
}

func savedPorts(ports []port) (saved []savedPort) {
	for _, p := range ports {
		saved = append(saved, savedPort{p.name, p.protocol, p.number})
	}
	return saved
}

func portsOf(saved []savedPort) (ports []port) {
	for _, p := range saved {
		ports = append(ports, port{p.Name, p.Protocol, p.Number})
	}
	return ports
}

// restore makes the state from the saved contents.
func (m memory) restore() *state {
	s := newState()
	for _, name := range m.Namespaces {
		s.setNamespace(name, true)
	}
	for _, one := range m.Services {
		s.addService(types.NamespacedName{Namespace: one.Namespace, Name: one.Name}, &service{
			addrs: one.Addrs, headless: one.Headless, externalName: one.External, unready: one.Unready,
			ports: portsOf(one.Ports),
		})
	}
	for _, saved := range m.Slices {
		one := &slice{ports: portsOf(saved.Ports)}
		for _, e := range saved.Endpoints {
			one.endpoints = append(one.endpoints, endpoint{e.Addrs, e.Hostname, e.Ready})
		}
		s.addSlice(types.NamespacedName{Namespace: saved.Namespace, Name: saved.Name},
			types.NamespacedName{Namespace: saved.Namespace, Name: saved.Service}, one)
	}
	return s
}

// recall uses an earlier process's state until the informers are synced. A missing or useless file
// is no failure.
func (s *Server) recall() {
	if s.config.File == "" {
		return
	}
	data, err := os.ReadFile(s.config.File)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var m memory
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil && (m.Format != memoryFormat || m.Domain != s.config.Domain) {
		err = fmt.Errorf("it is of format %d and domain %q", m.Format, m.Domain)
	}
	if err != nil {
		s.config.Logger.Warn("cluster DNS: the saved state is unusable, so the servers are waited for", "file",
			s.config.File, "err", err)
		return
	}
	s.resolver.former = &zone{state: m.restore(), origin: s.resolver.zone.origin, server: s.resolver.zone.server}
	if rules, err := ParseRules(m.Rules, s.config.Domain, s.config.own); err == nil {
		s.setRules(rules)
		s.accepted, s.recalled = m.Rules, true
	}
}

// remember saves changes, until ctx ends and once more then.
func (s *Server) remember(ctx context.Context) {
	var written uint64
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-time.After(rememberEvery):
		}
		version := s.state.changes()
		if !s.synced.Load() || version == written {
			continue
		}
		if err := s.writeDown(); err != nil {
			s.config.Logger.Warn("cluster DNS: cannot save the state; a start without servers will know less", "err",
				err)
			continue
		}
		written = version
	}
}

func (s *Server) writeDown() error {
	m := s.state.save()
	m.Domain = s.config.Domain
	s.acceptedMu.Lock()
	m.Rules = s.accepted
	s.acceptedMu.Unlock()
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.config.File, data, 0o600)
}

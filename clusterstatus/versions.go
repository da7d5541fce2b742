package clusterstatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/skew"
	"github.com/barque/barque/pki"
)

// versions warns of servers in different versions, and of agents in another version than the
// servers. Both are the state of an upgrade, and must not last. A server that does not fit the
// others at all may stop at an entry of the log that it cannot read.
func (w *warner) versions() {
	var servers []skew.Server
	var said []string
	for _, m := range w.status.Members {
		if m.Store != nil && m.Version != "" {
			servers, said = append(servers, skew.Server{Name: m.Name, Version: m.Version}),
				append(said, m.Name+" "+m.Version)
		}
	}
	isServers := func(of string) bool {
		return slices.ContainsFunc(servers, func(s skew.Server) bool { return s.Version == of })
	}
	mixed := slices.ContainsFunc(servers, func(s skew.Server) bool { return s.Version != servers[0].Version })
	unfit := false
	for _, s := range servers {
		if err := skew.Join("server "+s.Name, pki.RoleServer, s.Version, servers); err != nil {
			unfit = true
			w.add(Critical, "", "", "bring all servers to one version", "the servers' versions do not fit: %v", err)
			break
		}
	}
	if mixed && !unfit {
		w.add(Attention, "", "", "bring all servers to one version", "the servers run different versions: %s",
			strings.Join(said, ", "))
	}
	w.agentVersions(servers, isServers)
}

// agentVersions warns of agents whose version no server has. A dead agent has its own warning.
func (w *warner) agentVersions(servers []skew.Server, isServers func(version string) bool) {
	if len(servers) == 0 {
		return
	}
	others := map[string][]string{} // agents, by version
	for _, m := range w.status.Members {
		if m.Role != pki.RoleAgent || m.Gossip != gossip.Alive || m.Version == "" || isServers(m.Version) {
			continue
		}
		if err := skew.Join("agent "+m.Name, pki.RoleAgent, m.Version, servers); err != nil {
			w.add(Attention, m.Name, m.Name, "install the servers' version there, and restart barque-agent",
				"agent %s does not fit the servers: %v", m.Name, err)
			continue
		}
		others[m.Version] = append(others[m.Version], m.Name)
	}
	if len(others) == 0 {
		return
	}
	var said []string
	for _, of := range slices.Sorted(maps.Keys(others)) {
		said = append(said, fmt.Sprintf("%s (%s)", version.Parse(of), firstOf(others[of])))
	}
	w.add(Attention, "", "", "install the servers' version on these machines, and restart barque-agent",
		"agents run other versions than the servers (%s): %s",
		version.Parse(servers[0].Version), strings.Join(said, ", "))
}

package upgrade

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/internal/version"
)

// Preview is the plan of an upgrade that has not begun.
type Preview struct {
	Version   string    `json:"version"`
	Direction Direction `json:"direction"`
	// Steps are the nodes in their order: a server, or a group of agents.
	Steps [][]string `json:"steps"`
	// Left are nodes that are in the version, and Skipped those without a sign of life.
	Left    []string `json:"left,omitempty"`
	Skipped []string `json:"skipped,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	Refused string   `json:"refused,omitempty"`
}

// PreviewOf returns the plan for the nodes as they are now.
func PreviewOf(spec Spec, nodes []NodeSeen, leader string) Preview {
	d := &decision{spec: spec, seen: Seen{Nodes: nodes}}
	p := Preview{Version: spec.Version, Direction: d.direction()}
	if err := fits(spec.Version, nodes); err != nil {
		p.Refused = err.Error()
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b NodeSeen) int {
		return cmp.Or(-cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
	})
	var servers, agents [][]string
	last, voters := "", 0
	for _, n := range nodes {
		if n.server() {
			voters++
		}
		switch {
		case version.Parse(n.Version).String() == spec.Version:
			p.Left = append(p.Left, n.Name)
		case n.server() && !n.Alive:
			p.Refused = cmp.Or(p.Refused, "server "+n.Name+" shows no life")
		case !n.Alive:
			p.Skipped = append(p.Skipped, n.Name)
		case n.server() && n.Name == leader:
			last = n.Name
		case n.server():
			servers = append(servers, []string{n.Name})
		case len(agents) == 0 || len(agents[len(agents)-1]) == spec.agents():
			agents = append(agents, []string{n.Name})
		default:
			agents[len(agents)-1] = append(agents[len(agents)-1], n.Name)
		}
	}
	if last != "" {
		servers = append(servers, []string{last})
	}
	p.Steps = append(servers, agents...)
	if p.Direction == Down {
		p.Steps = append(agents, servers...)
		p.Notes = append(p.Notes, "this is the way back: read docs/upgrading.md first. Take flags out of units and files that the earlier version does not know, and let Jobs that may not fail end before")
	}
	if voters < 3 && len(servers) > 0 {
		p.Notes = append(p.Notes, "with fewer than three servers nothing can be written while one restarts")
	}
	return p
}

// Lines describes the plan for people.
func (p *Preview) Lines() (lines []string) {
	for i, step := range p.Steps {
		lines = append(lines, fmt.Sprintf("%d. restart %s with version %s, and pass the gates", i+1, strings.Join(step, ", "),
			p.Version))
	}
	if len(p.Left) > 0 {
		lines = append(lines, "already in this version: "+firstOf(p.Left))
	}
	if len(p.Skipped) > 0 {
		lines = append(lines, "left out, as they show no life: "+firstOf(p.Skipped))
	}
	for _, note := range p.Notes {
		lines = append(lines, "note: "+note)
	}
	if p.Refused != "" {
		lines = append(lines, "REFUSED: "+p.Refused)
	}
	return lines
}

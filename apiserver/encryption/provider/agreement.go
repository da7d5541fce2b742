package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/internal/scope"
)

// Agreement is the file and the labels that all servers have, for the state of the data keys.
type Agreement struct {
	File   string   // hash; empty: no server has a file
	Labels []string // of the keys under which the providers write
	// Encrypts are the names of the resources that a provider of the file may have written, and
	// Plain are those with identity alone.
	Encrypts, Plain []string
	// Probes are ciphertexts of this server's, by the labels of keys in a KMS of which the state
	// has none that this server decrypts. The others decrypt them before they agree.
	Probes map[string][]byte
	// Proved are the ciphertexts of the state that all servers have decrypted.
	Proved map[string][]byte
}

// apart are the other servers whose gossip differs from this one's.
type apart struct {
	known  bool     // the others are known
	file   bool     // a server has a file
	differ []string // living servers with another file, or without one
	keys   []string // living servers with this file, whose plugins do not encrypt with the same keys
	blind  []string // living servers that cannot read all objects
	away   []string // servers that do not run
	same   bool     // all run, and have the same file or none
}

// compare looks at the other servers.
func (p *Providers) compare() (is apart) {
	own, keys := p.Digest(), p.Keys()
	others, known := p.cfg.Others()
	is.known, is.file, is.same = known, own != 0, known
	for _, o := range others {
		is.file = is.file || o.File != 0
		is.same = is.same && o.Alive && o.File == own
		if o.Alive && o.Blind {
			is.blind = append(is.blind, o.Name)
		}
		switch {
		case !o.Alive:
			is.away = append(is.away, o.Name)
		case o.File == own && o.Keys != keys:
			is.keys = append(is.keys, o.Name)
		case o.File != own && o.File == 0:
			is.differ = append(is.differ, o.Name+" (without a file)")
		case o.File != own:
			is.differ = append(is.differ, o.Name)
		}
	}
	slices.Sort(is.differ)
	slices.Sort(is.away)
	slices.Sort(is.keys)
	slices.Sort(is.blind)
	return is
}

// Agreed returns the file and the labels of all servers, or why these differ. listed is the file
// that is in use. Another one needs all servers: one that does not run may come back with another
// file. With ask, the plugins are checked at once.
func (p *Providers) Agreed(ctx context.Context, listed string, ask bool) (Agreement, error) {
	g := p.current.Load()
	if ask && g != nil {
		p.lookAtPlugins(ctx)
	}
	own, is := p.Now().File(), p.compare()
	switch {
	case !is.file && listed == "":
		return Agreement{}, nil
	case !is.known:
		return Agreement{}, fmt.Errorf("this server does not know yet which files of %s the others have", fileFlag)
	case len(is.differ) > 0:
		return Agreement{}, p.differs(is)
	case own != listed && len(is.away) > 0:
		return Agreement{},
			fmt.Errorf(
				"another file of %s is in use, or none, and these servers do not run: %s. It is not known which file they have: start them, or remove them from the cluster", fileFlag, strings.Join(is.away, ", "))
	case g == nil:
		return Agreement{}, nil
	}
	seen := g.looked.Load()
	if err := seen.unknown(); err != nil {
		return Agreement{}, fmt.Errorf("the plugins of %s %s are not settled: %w", fileFlag, p.options.File, err)
	}
	a := Agreement{File: own, Labels: seen.labels, Encrypts: g.encrypts, Plain: g.plain, Probes: seen.probes,
		Proved: seen.proved}
	switch {
	case len(a.Probes) > 0: // the others cannot have decrypted them yet
	case len(is.keys) > 0:
		return Agreement{},
			fmt.Errorf(
				"the plugins of %s do not encrypt with the same key on these servers as on this one, or do not decrypt its values: %s; give all plugins the same key, which takes effect within a minute", fileFlag, strings.Join(is.keys, ", "))
	case len(is.blind) > 0:
		return Agreement{},
			fmt.Errorf(
				"these servers cannot read all objects: %s; the check encryption-file of their /readyz has the reason",
				strings.Join(is.blind, ", "))
	}
	if p.current.Load() != g {
		return Agreement{}, fmt.Errorf("%s %s has just changed", fileFlag, p.options.File)
	}
	return a, nil
}

// differs returns the error for living servers that do not have this server's file.
func (p *Providers) differs(is apart) error {
	of := "this server has none"
	if p.options.File != "" {
		of = "this server has " + p.options.File
	}
	return fmt.Errorf(
		"the file of %s differs between servers, so that one could not read what another writes: %s, %s: give all servers the same file first", fileFlag, of, strings.Join(is.differ, ", "))
}

// Status of the file, for people.
type Status struct {
	Path      string            `json:"path"`
	Hash      string            `json:"hash,omitempty"`
	Problem   string            `json:"problem,omitempty"`
	Resources map[string]string `json:"resources"` // and their first providers
	// Writes is true while the file of this server is the one in use. The data key writes
	// otherwise.
	Writes bool     `json:"writes"`
	Differ []string `json:"differ,omitempty"` // living servers with another file, or without one
	Away   []string `json:"away,omitempty"`   // servers that do not run
}

// Status returns the status, nil without a file on any server. The caller knows whether it writes.
func (p *Providers) Status() *Status {
	is := p.compare()
	if !is.file {
		return nil
	}
	s := &Status{Resources: p.Resources(), Differ: is.differ, Away: is.away}
	if p.file != nil {
		state := p.file.State()
		s.Path, s.Problem, s.Hash = state.Path, state.Problem, p.Now().File()
		if err := p.current.Load().unhealthy(); err != nil && s.Problem == "" {
			s.Problem = "a plugin is not healthy: " + err.Error()
		}
	}
	return s
}

// Resources returns the first providers by the names of resources in the file.
func (p *Providers) Resources() map[string]string {
	g := p.current.Load()
	if g == nil {
		return nil
	}
	all := map[string]string{}
	for of, name := range g.first {
		all[nameIn(of)] = name
	}
	return all
}

// nameIn is the name of a resource in a file.
func nameIn(of schema.GroupResource) string {
	if of.Resource == "*" && of.Group == "" {
		return scope.Core
	}
	return of.String()
}

// namesOf returns the names of resources that may be encrypted, and of those with identity alone.
func (g *generation) namesOf() (encrypts, plain []string) {
	for of := range maps.Keys(g.first) {
		switch {
		case encryption.Never(of):
		case g.alone[of]:
			plain = append(plain, nameIn(of))
		default:
			encrypts = append(encrypts, nameIn(of))
		}
	}
	slices.Sort(encrypts)
	slices.Sort(plain)
	return encrypts, plain
}

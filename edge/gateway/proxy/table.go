package proxy

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
)

// table has the routes of one port. Readers get an immutable view, which update replaces as a
// whole: a new view shares all hosts that have not changed with the one before.
type table struct {
	view atomic.Pointer[view]

	// Only update touches these. members are the routes of each host.
	members map[host]map[model.Origin]*compiled
}

type view struct {
	hosts map[host]*rules
	// isolated are the hostnames of listeners, below which a search ends.
	isolated map[host]bool
}

// host is a name, a name behind "*.", or "" for all, for one way of serving.
type host struct {
	serve model.Serve
	name  string
}

func newTable() *table {
	t := &table{members: map[host]map[model.Origin]*compiled{}}
	t.view.Store(&view{})
	return t
}

// compiled is a route with all that a request needs.
type compiled struct {
	*model.Route
	actions []*action // of the rules
	stream  *action
	port    map[host]*model.Place // of the table
}

// set replaces routes in the table; nil removes one. It costs what the hosts of these routes cost,
// and a copy of the map of hosts.
func (t *table) set(changes map[model.Origin]*compiled, before map[model.Origin]*compiled) {
	dirty := map[host]bool{}
	for origin := range changes {
		if old := before[origin]; old != nil {
			for h := range old.port {
				delete(t.members[h], origin)
				dirty[h] = true
			}
		}
		if now := changes[origin]; now != nil {
			for h := range now.port {
				if t.members[h] == nil {
					t.members[h] = map[model.Origin]*compiled{}
				}
				t.members[h][origin] = now
				dirty[h] = true
			}
		}
	}
	if len(dirty) == 0 {
		return
	}
	old := t.view.Load()
	next := &view{hosts: maps.Clone(old.hosts), isolated: old.isolated}
	if next.hosts == nil {
		next.hosts = map[host]*rules{}
	}
	for h := range dirty {
		if len(t.members[h]) == 0 {
			delete(t.members, h)
			delete(next.hosts, h)
			continue
		}
		next.hosts[h] = newRules(h, t.members[h])
	}
	t.view.Store(next)
}

func (t *table) isolate(names map[host]bool) {
	old := t.view.Load()
	t.view.Store(&view{hosts: old.hosts, isolated: names})
}

// rules are those of one host, by path.
type rules struct {
	exact  map[string][]*entry
	regex  []*entry
	prefix map[string][]*entry // without a slash at the end
	stream *entry
	// clients are the requirements for clients that all routes together have.
	clients *model.Clients
	wide    bool // "*." stands for several labels, for some route
}

// entry is one match of a rule.
type entry struct {
	match   *model.Match
	action  *action
	prefix  string // the part of a path that the rule has matched
	created time.Time
	origin  model.Origin
	index   int
	one     bool // "*." stands for one label
	// clients are the requirements for a client, and shown is the certificate for backends.
	clients *model.Clients
	shown   types.NamespacedName
}

func newRules(h host, members map[model.Origin]*compiled) *rules {
	r := &rules{exact: map[string][]*entry{}, prefix: map[string][]*entry{}}
	first := true
	for _, c := range members {
		place := c.port[h]
		if first {
			r.clients, first = place.Clients, false
		}
		r.clients, r.wide = model.Together(r.clients, place.Clients), r.wide || !place.OneLabel
		e := entry{created: c.Created, origin: c.Origin, one: place.OneLabel, clients: place.Clients,
			shown: place.Shown}
		if c.stream != nil {
			s := e
			if s.action = c.stream; r.stream == nil || older(&s, r.stream) < 0 {
				r.stream = &s
			}
		}
		served := place.Rules
		for i := range c.Rules {
			if served != nil && !slices.Contains(served, i) {
				continue
			}
			for j := range c.Rules[i].Matches {
				m := e
				m.match, m.action = &c.Rules[i].Matches[j], c.actions[i]
				m.index = i<<16 | j
				r.add(&m)
			}
		}
	}
	for _, list := range r.exact {
		slices.SortFunc(list, before)
	}
	for _, list := range r.prefix {
		slices.SortFunc(list, before)
	}
	slices.SortFunc(r.regex, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(len(b.match.Path), len(a.match.Path)), before(a, b))
	})
	return r
}

func (r *rules) add(e *entry) {
	switch e.match.Kind {
	case model.Exact:
		r.exact[e.match.Path] = append(r.exact[e.match.Path], e)
	case model.Regex:
		r.regex = append(r.regex, e)
	default:
		e.prefix = strings.TrimSuffix(e.match.Path, "/")
		r.prefix[e.prefix] = append(r.prefix[e.prefix], e)
	}
}

// before is the order of entries with the same path, as the Gateway API has it: a method, then the
// number of headers, then that of parameters, then age and name. A canary comes before the rule
// that it takes requests from.
func before(a, b *entry) int {
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(first(a.action.Canary != nil), first(b.action.Canary != nil)),
		cmp.Compare(first(a.match.Method != ""), first(b.match.Method != "")),
		cmp.Compare(len(b.match.Headers), len(a.match.Headers)),
		cmp.Compare(len(b.match.Query), len(a.match.Query)),
		older(a, b),
		cmp.Compare(a.index, b.index),
	)
}

func older(a, b *entry) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.origin.Namespace, b.origin.Namespace),
		cmp.Compare(a.origin.Name, b.origin.Name), cmp.Compare(a.origin.Kind, b.origin.Kind))
}

// find returns the entry for a request to a name in lower case, without a port.
func (v *view) find(serve model.Serve, name string, r *http.Request) *entry {
	var query url.Values
	params := func() url.Values {
		if query == nil {
			query = r.URL.Query()
		}
		return query
	}
	for h, one := range candidates(serve, name) {
		if rules := v.hosts[h]; rules != nil {
			if e := rules.find(r, params, one); e != nil {
				return e
			}
		}
		if v.isolated[h] {
			return nil
		}
	}
	return nil
}

// streamOf returns the route by server name.
func (v *view) streamOf(serve model.Serve, name string) *entry {
	for h, one := range candidates(serve, name) {
		if rules := v.hosts[h]; rules != nil && rules.stream != nil && (one || !rules.stream.one) {
			return rules.stream
		}
		if v.isolated[h] {
			return nil
		}
	}
	return nil
}

// clientsOf returns the requirements for clients of HTTPS that the routes of a server name have;
// false if it has no routes of its own. The most specific host may want a certificate; those below
// it only let the handshake ask for one.
func (v *view) clientsOf(name string) (clients *model.Clients, found bool) {
	for h, one := range candidates(model.HTTPS, name) {
		if rules := v.hosts[h]; rules != nil && (one || rules.wide) {
			if !found {
				clients, found = rules.clients, true
			}
			if clients = model.Together(clients, rules.clients); clients.Required() {
				break
			}
		}
		if v.isolated[h] {
			break
		}
	}
	return clients, found
}

// candidates are the hosts of a name, the most specific one first; the value is false where "*."
// stands for more than one label.
func candidates(serve model.Serve, name string) func(func(host, bool) bool) {
	return func(yield func(host, bool) bool) {
		if name != "" && !yield(host{serve, name}, true) {
			return
		}
		for rest, first := name, true; ; first = false {
			_, parent, more := strings.Cut(rest, ".")
			if !more {
				break
			}
			if !yield(host{serve, "*." + parent}, first) {
				return
			}
			rest = parent
		}
		yield(host{serve, ""}, true)
	}
}

// find returns the first entry that matches. one is false where the name has more labels than one
// in the place of "*.".
func (r *rules) find(req *http.Request, params func() url.Values, one bool) *entry {
	path := req.URL.Path
	if path == "" {
		path = "/"
	}
	first := func(list []*entry) *entry {
		for _, e := range list {
			if (one || !e.one) && matches(e, req, params) {
				return e
			}
		}
		return nil
	}
	if e := first(r.exact[path]); e != nil {
		return e
	}
	for _, e := range r.regex {
		if (one || !e.one) && e.match.Pattern.MatchString(path) && matches(e, req, params) {
			return e
		}
	}
	if len(r.prefix) == 0 {
		return nil
	}
	for p := strings.TrimSuffix(path, "/"); ; {
		if e := first(r.prefix[p]); e != nil {
			return e
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			return nil
		}
		p = p[:i]
	}
}

// matches checks all but the path.
func matches(e *entry, r *http.Request, params func() url.Values) bool {
	m := e.match
	if m.Method != "" && m.Method != r.Method {
		return false
	}
	for i := range m.Headers {
		values := r.Header.Values(m.Headers[i].Name)
		if strings.EqualFold(m.Headers[i].Name, "Host") {
			values = []string{r.Host}
		}
		if len(values) == 0 || !equal(&m.Headers[i], strings.Join(values, ",")) {
			return false
		}
	}
	for i := range m.Query {
		values, ok := params()[m.Query[i].Name]
		if !ok || !equal(&m.Query[i], values[0]) {
			return false
		}
	}
	return e.action.Canary == nil || e.action.Canary.Takes(r)
}

func equal(v *model.Value, text string) bool {
	if v.Pattern != nil {
		return v.Pattern.MatchString(text)
	}
	return v.Text == text
}

package provider

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	configmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/internal/lifecycle"
)

// A changed file counts once its plugins answer, within healthWithin; otherwise the former one goes
// on. It still answers those requests that have begun with it.
const (
	healthWithin = 10 * time.Second
	healthEvery  = 100 * time.Millisecond
	lingers      = time.Minute
)

// Config of the Providers.
type Config struct {
	Options *Options
	// Server is this server's name, for errors and metrics.
	Server string
	// Others returns the other servers of the cluster, by the files that they show.
	Others func() []Other
	// Took is called after a changed file has come into effect.
	Took   func()
	Logger *slog.Logger
	Now    func() time.Time
}

// Other is another server.
type Other struct {
	Name string
	// File is the Digest of its file; 0: it has none.
	File uint32
	// Alive is false for a server that is off. Its file is not known.
	Alive bool
	// Unmet is set for a server of which nothing was heard since this one was started.
	Unmet bool
}

// unmetFor is how long after its start this server takes a server that it has not met for one with
// another file.
const unmetFor = 30 * time.Second

// Providers are those of the file in effect, if there is one. Their owner calls Run.
type Providers struct {
	options Options
	server  string
	cfg     Config
	file    *configfile.File // nil without one
	current atomic.Pointer[generation]
	started time.Time
	seen    atomic.Pointer[agreement]
	// ctx ends with Run; it is that of connections to plugins.
	ctx context.Context
	end context.CancelFunc
}

var _ encryption.Outside = (*Providers)(nil)

// generation is a file in effect.
type generation struct {
	digest uint32
	// transformers by resource, as the file names them: also "*.GROUP" and "*.*".
	transformers map[schema.GroupResource]value.Transformer
	first        map[schema.GroupResource]string // names of the providers that write
	health       healthz.HealthChecker
	grace        time.Duration // in which plugins may still answer requests
	end          context.CancelFunc

	resolved sync.Map // *transformer, nil for none, by schema.GroupResource
}

// New reads the file. A plugin that does not answer is no error: it may come later.
func New(cfg Config) (*Providers, error) {
	p := &Providers{options: *cfg.Options, server: cfg.Server, cfg: cfg, started: cfg.Now()}
	p.ctx, p.end = context.WithCancel(context.Background())
	if p.options.File == "" {
		return p, nil
	}
	_, data, err := p.options.read()
	if err == nil {
		var g *generation
		if g, err = p.load(data); err == nil {
			p.current.Store(g)
		}
	}
	if err != nil {
		p.end()
		return nil, err
	}
	configmetrics.RegisterMetrics()
	configmetrics.RecordEncryptionConfigLastConfigInfo(cfg.Server, configfile.Hash(data))
	watch := configfile.Config{Flag: fileFlag, Path: p.options.File, Logger: cfg.Logger}
	if p.options.Reload {
		watch.Apply, watch.Reloaded = p.reload, func(data []byte, err error) {
			if err != nil {
				configmetrics.RecordEncryptionConfigAutomaticReloadFailure(cfg.Server)
				return
			}
			configmetrics.RecordEncryptionConfigAutomaticReloadSuccess(cfg.Server, configfile.Hash(data))
		}
	}
	p.file = configfile.New(watch, data)
	return p, nil
}

// Digest is a short hash of a file's content, which is never 0.
func Digest(data []byte) uint32 { return digestOf(configfile.Hash(data)) }

// digestOf takes the last 8 digits of a hash.
func digestOf(hash string) uint32 {
	n, err := strconv.ParseUint(hash[len(hash)-hex.EncodedLen(4):], 16, 32)
	if err != nil {
		panic(err) // a hash is in hexadecimal digits
	}
	return max(uint32(n), 1)
}

// load makes the generation of a content. Upstream reads the file itself.
func (p *Providers) load(data []byte) (*generation, error) {
	config, err := Load(data)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", fileFlag, p.options.File, err)
	}
	ctx, end := context.WithCancel(p.ctx)
	// With reload, upstream checks more, and has exactly one check of health.
	made, err := encryptionconfig.LoadEncryptionConfig(ctx, p.options.File, true, p.server)
	switch {
	case err != nil:
	case made.EncryptionFileContentHash != configfile.Hash(data):
		err = fmt.Errorf("the file changes at this moment")
	case len(made.HealthChecks) != 1:
		err = fmt.Errorf("it has %d checks of health: want 1", len(made.HealthChecks))
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("%s %s: %w", fileFlag, p.options.File, err)
	}
	return &generation{digest: Digest(data), transformers: made.Transformers, first: firstOf(config), health: made.HealthChecks[0],
		grace: made.KMSCloseGracePeriod, end: end}, nil
}

// firstOf returns the names of the providers that write. Of several entries with a resource, the
// first one counts, as upstream does.
func firstOf(config *apiserver.EncryptionConfiguration) map[schema.GroupResource]string {
	first := map[schema.GroupResource]string{}
	for i := range config.Resources {
		for _, name := range config.Resources[i].Resources {
			if of := schema.ParseGroupResource(name); first[of] == "" {
				first[of] = nameOf(&config.Resources[i].Providers[0])
			}
		}
	}
	return first
}

// named returns the name by which the file names a resource: its own, or one with a wildcard.
func (g *generation) named(resource schema.GroupResource) (as schema.GroupResource, ok bool) {
	for _, as := range []schema.GroupResource{resource, {Group: resource.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if g.transformers[as] != nil {
			return as, true
		}
	}
	return as, false
}

// Of implements encryption.Outside.
func (p *Providers) Of(resource schema.GroupResource) value.Transformer {
	g := p.current.Load()
	if g == nil {
		return nil
	}
	known, ok := g.resolved.Load(resource)
	if !ok {
		known, _ = g.resolved.LoadOrStore(resource, p.resolve(g, resource))
	}
	if t := known.(*transformer); t != nil {
		return t
	}
	return nil
}

func (p *Providers) resolve(g *generation, resource schema.GroupResource) *transformer {
	as, ok := g.named(resource)
	if !ok || encryption.Never(resource) {
		return nil
	}
	with := encryptionconfig.StaticTransformers(g.transformers).TransformerForResource(resource)
	return &transformer{Transformer: with, all: p, path: p.options.File, first: g.first[as]}
}

// reload replaces the providers, once the new plugins answer.
func (p *Providers) reload(ctx context.Context, data []byte) error {
	g, err := p.load(data)
	if err != nil {
		return err
	}
	if err := awaitHealth(ctx, g); err != nil {
		g.end()
		return fmt.Errorf("a plugin of the file is not healthy: %w", err)
	}
	former := p.current.Swap(g)
	p.seen.Store(nil)
	time.AfterFunc(max(lingers, former.grace), former.end)
	p.cfg.Took()
	return nil
}

// awaitHealth repeats the check of health until it passes, for some time.
func awaitHealth(ctx context.Context, g *generation) error {
	ctx, cancel := context.WithTimeout(ctx, max(healthWithin, g.grace))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+g.health.Name(), nil)
	if err != nil {
		return err
	}
	ticks := time.NewTicker(healthEvery)
	defer ticks.Stop()
	for {
		err := g.health.Check(request)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticks.C:
		}
	}
}

// Run looks for a changed file until the context ends. Then it closes the connections to plugins.
func (p *Providers) Run(ctx context.Context) error {
	defer p.end()
	runs := []func(context.Context) error{func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}}
	if p.file != nil {
		runs = append(runs, p.file.Run)
	}
	return lifecycle.All(ctx, runs...)
}

// Files returns the state of the file, if there is one.
func (p *Providers) Files() []configfile.State {
	if p.file == nil {
		return nil
	}
	return []configfile.State{p.file.State()}
}

// Digest is that of the file in effect; 0: there is none.
func (p *Providers) Digest() uint32 {
	if g := p.current.Load(); g != nil {
		return g.digest
	}
	return 0
}

// Health returns upstream's check of the plugins, or nil without a file.
func (p *Providers) Health() healthz.HealthChecker {
	g := p.current.Load()
	if g == nil {
		return nil
	}
	return healthz.NamedCheck(g.health.Name(), func(r *http.Request) error { return p.current.Load().health.Check(r) })
}

// agreement is whether the servers have the same file, or none.
type agreement struct {
	at     time.Time
	differ []string // living servers with another file, or whose file is not known yet
	all    bool     // all servers have the same one, and none is off
}

// lookAgain is how long an agreement counts: each write asks for it.
const lookAgain = time.Second

func (p *Providers) agreement() *agreement {
	now := p.cfg.Now()
	if last := p.seen.Load(); last != nil && now.Sub(last.at) < lookAgain {
		return last
	}
	own, is := p.Digest(), &agreement{at: now, all: true}
	for _, o := range p.cfg.Others() {
		switch {
		case !o.Alive && (!o.Unmet || now.Sub(p.started) > unmetFor):
			is.all = false
		case !o.Alive:
			is.all, is.differ = false, append(is.differ, o.Name+" (not met yet)")
		case o.File == 0 && own != 0:
			is.all, is.differ = false, append(is.differ, o.Name+" (without a file)")
		case o.File != own:
			is.all, is.differ = false, append(is.differ, o.Name)
		}
	}
	slices.Sort(is.differ)
	p.seen.Store(is)
	return is
}

// Writes implements encryption.Outside.
func (p *Providers) Writes() bool { return len(p.agreement().differ) == 0 }

// Refuses returns why the data keys cannot be changed now, or nil. inClear is set for a change that
// writes all objects in clear.
func (p *Providers) Refuses(inClear bool) error {
	if differ := p.agreement().differ; len(differ) > 0 {
		of := "this server has none"
		if p.options.File != "" {
			of = "this server has " + p.options.File
		}
		return fmt.Errorf("the file of %s differs between servers, so that one could not read what another writes: %s, %s: give all servers the same file first", fileFlag, of, strings.Join(differ, ", "))
	}
	if !inClear {
		return nil
	}
	for _, name := range slices.Sorted(maps.Values(p.Resources())) {
		if name != identity {
			return fmt.Errorf("the provider %s of %s %s would go on to encrypt: put the provider identity first in the file on all servers, and begin with `barque secrets-encrypt rewrite`", name, fileFlag, p.options.File)
		}
	}
	return nil
}

// Resources returns the first providers by the names of resources in the file.
func (p *Providers) Resources() map[string]string {
	g := p.current.Load()
	if g == nil {
		return nil
	}
	all := map[string]string{}
	for of, name := range g.first {
		as := of.String()
		if of.Resource == "*" && of.Group == "" {
			as = "*."
		}
		all[as] = name
	}
	return all
}

// Status of the file, for people.
type Status struct {
	Path      string            `json:"path"`
	Problem   string            `json:"problem,omitempty"`
	Resources map[string]string `json:"resources"` // and their first providers
	// Writes is false while the data key of the cluster writes in place of the providers.
	Writes bool     `json:"writes"`
	Differ []string `json:"differ,omitempty"` // living servers with another file, or without one
}

// Status returns the status, nil without a file on any server.
func (p *Providers) Status() *Status {
	differ := p.agreement().differ
	if p.file == nil && len(differ) == 0 {
		return nil
	}
	s := &Status{Resources: p.Resources(), Writes: len(differ) == 0, Differ: differ}
	if p.file != nil {
		state := p.file.State()
		s.Path, s.Problem = state.Path, state.Problem
		s.Problem = cmp.Or(s.Problem, p.health())
	}
	return s
}

// health returns why a plugin is not healthy, or nothing.
func (p *Providers) health() string {
	request, err := http.NewRequestWithContext(p.ctx, http.MethodGet, "/healthz", nil)
	if err == nil {
		err = p.current.Load().health.Check(request)
	}
	if err != nil {
		return "a plugin is not healthy: " + err.Error()
	}
	return ""
}

// Cipher returns the provider that writes a resource, and whether the file says: without it, or
// while the files differ, the data keys do. keys reports whether these encrypt anything. A provider
// that does not encrypt is "".
func (p *Providers) Cipher(resource schema.GroupResource, keys bool) (cipher string, says bool) {
	with, _ := p.Of(resource).(*transformer)
	if with == nil || keys && !p.Writes() {
		return "", false
	}
	if with.first == identity {
		return "", true
	}
	return with.first + " of " + fileFlag, true
}

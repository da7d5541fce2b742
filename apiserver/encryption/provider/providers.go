package provider

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	configmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	kmsservice "k8s.io/kms/pkg/service"

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
	// Others returns the other servers of the cluster, by the files that they show; false: they are
	// not known yet.
	Others func() (others []Other, known bool)
	// Took is called after Digest or Keys has changed.
	Took   func()
	Logger *slog.Logger
	Now    func() time.Time
}

// Other is another server.
type Other struct {
	Name string
	// File is the Digest of its file, the last one of a server that is off; 0: it has none.
	File uint32
	// Keys are the Keys of its plugins; 0: not known.
	Keys  uint16
	Alive bool
	// Unmet is set for a server of which nothing was heard since this one was started: its file is
	// not known.
	Unmet bool
}

// unmetFor is how long changes wait for servers that were not met yet, from when this server knows
// which ones there are.
const unmetFor = 30 * time.Second

// Providers are those of the file in effect, if there is one. Their owner calls Run.
type Providers struct {
	options Options
	server  string
	cfg     Config
	file    *configfile.File // nil without one
	current atomic.Pointer[generation]
	knows   atomic.Pointer[time.Time] // since when the other servers are known
	seen    atomic.Pointer[agreement]
	keys    atomic.Uint32 // see Keys
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
	healthy      atomic.Pointer[error] // of the last look at health; nil: there was none yet
	plugins      map[string]kmsservice.Service
	grace        time.Duration // in which plugins may still answer requests
	end          context.CancelFunc

	resolved sync.Map // *transformer, nil for none, by schema.GroupResource
}

// New reads the file. A plugin that does not answer is no error: it may come later.
func New(cfg Config) (*Providers, error) {
	p := &Providers{options: *cfg.Options, server: cfg.Server, cfg: cfg}
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
	switch now, _ := configfile.Read(p.options.File); {
	case !bytes.Equal(now, data), err == nil && made.EncryptionFileContentHash != configfile.Hash(data):
		err = errors.New("the file changes at this moment") // an error of upstream's may quote it
	case err != nil:
		err = withoutKeys(config, err)
	case len(made.HealthChecks) != 1:
		err = fmt.Errorf("it has %d checks of health: want 1", len(made.HealthChecks))
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("%s %s: %w", fileFlag, p.options.File, err)
	}
	g := &generation{digest: Digest(data), transformers: made.Transformers, first: firstOf(config), health: made.HealthChecks[0],
		grace: made.KMSCloseGracePeriod, end: end}
	if g.plugins, err = pluginsOf(ctx, config); err != nil {
		end()
		return nil, fmt.Errorf("%s %s: %w", fileFlag, p.options.File, err)
	}
	if len(g.plugins) == 0 {
		g.healthy.Store(new(error(nil)))
	}
	return g, nil
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
	g.healthy.Store(new(error(nil)))
	former := p.current.Swap(g)
	p.seen.Store(nil)
	time.AfterFunc(max(lingers, former.grace), former.end)
	p.cfg.Took()
	return nil
}

// Run looks for a changed file until the context ends. Then it closes the connections to plugins.
func (p *Providers) Run(ctx context.Context) error {
	defer p.end()
	if p.file == nil {
		<-ctx.Done()
		return nil
	}
	return lifecycle.All(ctx, p.file.Run, p.followPlugins)
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
	Differ []string `json:"differ,omitempty"` // servers with another file, without one, or not met yet
}

// Status returns the status, nil without a file on any server.
func (p *Providers) Status() *Status {
	is := p.agreement()
	if p.file == nil && len(is.differ) == 0 {
		return nil
	}
	s := &Status{Resources: p.Resources(), Writes: is.writes, Differ: slices.Concat(is.differ, is.away)}
	if p.file != nil {
		state := p.file.State()
		s.Path, s.Problem = state.Path, state.Problem
		if err := p.healthy(); err != nil {
			s.Problem = cmp.Or(s.Problem, "a plugin is not healthy: "+err.Error())
		}
	}
	return s
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

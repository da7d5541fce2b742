package provider

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	// Took is called after Digest or Keys, or the health of a plugin, has changed.
	Took   func()
	Logger *slog.Logger
}

// Other is another server.
type Other struct {
	Name string
	// File is the Digest of its file, the last one of a server that is off; 0: it has none.
	File uint32
	// Keys are its Keys; 0: not known.
	Keys  uint16
	Blind bool // it cannot read all objects
	Alive bool
}

// Providers are those of the file in effect, if there is one. Their owner calls Run.
type Providers struct {
	options Options
	server  string
	cfg     Config
	file    *configfile.File // nil without one
	current atomic.Pointer[generation]
	probes  atomic.Pointer[func() map[string][]byte]
	// ctx ends with Run; connections to plugins use it.
	ctx context.Context
	end context.CancelFunc
}

var _ encryption.Outside = (*Providers)(nil)

// generation is a file in effect.
type generation struct {
	path string
	hash string
	all  *Providers
	// transformers by resource, as the file names them: also "*.GROUP" and "*.*".
	transformers map[schema.GroupResource]value.Transformer
	first        map[schema.GroupResource]string // names of the providers that write
	alone        map[schema.GroupResource]bool   // those with identity and no other provider
	// encrypts and plain: see Agreement.
	encrypts, plain []string
	fixed           []string // labels of the providers that write and are no plugins
	health          healthz.HealthChecker
	looking         sync.Mutex             // held during a look
	looked          atomic.Pointer[looked] // nil: the plugins have not been checked yet
	plugins         map[string]kmsservice.Service
	grace           time.Duration // in which plugins may still answer requests
	end             context.CancelFunc

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
		} else {
			err = fmt.Errorf("%s %s: %w", fileFlag, p.options.File, err)
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

// Probe gives the Providers the probes of the state of the data keys, by their labels: see
// Agreement. It is called once the state can be read.
func (p *Providers) Probe(of func() map[string][]byte) { p.probes.Store(&of) }

// digestOf takes the last 8 digits of a hash. It is never 0.
func digestOf(hash string) uint32 {
	n, err := strconv.ParseUint(hash[len(hash)-hex.EncodedLen(4):], 16, 32)
	if err != nil {
		panic(err) // a hash is in hexadecimal digits
	}
	return max(uint32(n), 1)
}

// load makes the generation of a content. Upstream reads the file itself. An error lacks the flag
// and the file: the state of the file has these.
func (p *Providers) load(data []byte) (*generation, error) {
	config, err := Load(data)
	if err != nil {
		return nil, err
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
		return nil, err
	}
	g := &generation{path: p.options.File, hash: configfile.Hash(data), all: p, transformers: made.Transformers,
		health: made.HealthChecks[0],
		grace:  made.KMSCloseGracePeriod, end: end}
	g.first, g.alone = firstOf(config)
	g.encrypts, g.plain = g.namesOf()
	if g.plugins, err = pluginsOf(ctx, config); err != nil {
		end()
		return nil, err
	}
	fixed, err := g.labels(ctx, func(name string) bool { return !strings.HasPrefix(name, kmsName) })
	g.fixed = slices.Collect(maps.Keys(fixed))
	if err != nil {
		end()
		return nil, withoutKeys(config, err)
	}
	if len(g.plugins) == 0 {
		g.look(ctx)
	}
	return g, nil
}

// firstOf returns the names of the providers that write, and the resources with identity alone. Of
// several entries with a resource, the first one counts, as upstream does.
func firstOf(
	config *apiserver.EncryptionConfiguration,
) (first map[schema.GroupResource]string, alone map[schema.GroupResource]bool) {
	first, alone = map[schema.GroupResource]string{}, map[schema.GroupResource]bool{}
	for i := range config.Resources {
		for _, name := range config.Resources[i].Resources {
			if of := schema.ParseGroupResource(name); first[of] == "" {
				first[of] = nameOf(&config.Resources[i].Providers[0])
				alone[of] = first[of] == identity && len(config.Resources[i].Providers) == 1
			}
		}
	}
	return first, alone
}

// named returns the name by which the file names a resource: its own, or one with a wildcard.
func (g *generation) named(resource schema.GroupResource) (as schema.GroupResource, ok bool) {
	for _, as := range []schema.GroupResource{resource, {Group: resource.Group, Resource: "*"},
		{Group: "*", Resource: "*"}} {
		if g.transformers[as] != nil {
			return as, true
		}
	}
	return as, false
}

// none are the providers of a server without a file.
type none struct{}

func (none) File() string                                { return "" }
func (none) Of(schema.GroupResource) encryption.Provider { return nil }

// Now implements encryption.Outside.
func (p *Providers) Now() encryption.Providers {
	if g := p.current.Load(); g != nil {
		return g
	}
	return none{}
}

// File implements encryption.Providers.
func (g *generation) File() string { return g.hash }

// Of implements encryption.Providers.
func (g *generation) Of(resource schema.GroupResource) encryption.Provider {
	known, ok := g.resolved.Load(resource)
	if !ok {
		known, _ = g.resolved.LoadOrStore(resource, g.resolve(resource))
	}
	if t := known.(*transformer); t != nil {
		return t
	}
	return nil
}

func (g *generation) resolve(resource schema.GroupResource) *transformer {
	as, ok := g.named(resource)
	if !ok || encryption.Never(resource) {
		return nil
	}
	with := encryptionconfig.StaticTransformers(g.transformers).TransformerForResource(resource)
	return &transformer{Transformer: with, all: g.all, path: g.path, first: g.first[as]}
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
	g.look(ctx)
	former := p.current.Swap(g)
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

// Digest is a short hash of the file in effect, for gossip; 0: there is none.
func (p *Providers) Digest() uint32 {
	if g := p.current.Load(); g != nil {
		return digestOf(g.hash)
	}
	return 0
}

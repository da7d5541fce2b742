package provider

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmsservice "k8s.io/kms/pkg/service"

	"github.com/barque/barque/apiserver/encryption"
)

// Plugins are checked apart from requests, each pluginEvery: one that hangs delays no answer of
// /readyz. A check ends within healthWithin.
const pluginEvery = 5 * time.Second

// pluginTimeout is upstream's default for a call of a plugin.
const pluginTimeout = 3 * time.Second

// pluginsOf connects to the plugins of a file, for their keys. The connections end with ctx.
func pluginsOf(ctx context.Context, config *apiserver.EncryptionConfiguration) (map[string]kmsservice.Service, error) {
	all := map[string]kmsservice.Service{}
	for _, entry := range config.Resources {
		for _, p := range entry.Providers {
			if p.KMS == nil || all[p.KMS.Name] != nil {
				continue
			}
			within := pluginTimeout
			if p.KMS.Timeout != nil {
				within = p.KMS.Timeout.Duration
			}
			service, err := kmsv2.NewGRPCService(ctx, p.KMS.Endpoint, p.KMS.Name, within)
			if err != nil {
				return nil, fmt.Errorf("the plugin %q: %w", p.KMS.Name, err)
			}
			all[p.KMS.Name] = service
		}
	}
	return all, nil
}

// has reports whether the file has the plugin under whose key a value is.
func (g *generation) has(stored []byte) bool {
	for name := range g.plugins {
		if bytes.HasPrefix(stored, []byte(encryption.LabelOfKMS(name, ""))) {
			return true
		}
	}
	return false
}

// followPlugins checks the plugins until the context ends.
func (p *Providers) followPlugins(ctx context.Context) error {
	ticks := time.NewTicker(pluginEvery)
	defer ticks.Stop()
	for {
		p.lookAtPlugins(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// looked is the outcome of a check of the plugins.
type looked struct {
	err       error    // why one is not healthy
	unsettled error    // why the labels are about to change
	labels    []string // under which the providers of the file write
	// probes and proved: see Agreement.
	probes, proved map[string][]byte
}

// lookAtPlugins checks the health of the plugins, and reads their keys.
func (p *Providers) lookAtPlugins(ctx context.Context) {
	g := p.current.Load()
	keys, err := p.Keys(), g.unhealthy()
	g.look(ctx)
	if p.current.Load() == g && (p.Keys() != keys || (g.unhealthy() == nil) != (err == nil)) {
		p.cfg.Took()
	}
}

// look finds the key under which each provider writes now. Upstream's state of a plugin may be a
// minute old: a plugin that names another key by now is not settled.
func (g *generation) look(ctx context.Context) {
	g.looking.Lock() // an older look must not replace a newer one
	defer g.looking.Unlock()
	within, cancel := context.WithTimeout(ctx, max(healthWithin, g.grace))
	defer cancel()
	is := g.lookWithin(within)
	if ctx.Err() == nil { // the end of the caller is no failure of the plugins
		g.looked.Store(is)
	}
}

func (g *generation) lookWithin(ctx context.Context) *looked {
	is := new(looked)
	if len(g.plugins) > 0 {
		is.err = g.check(ctx)
	}
	var made map[string][]byte
	if is.err == nil {
		made, is.err = g.labels(ctx, func(name string) bool { return strings.HasPrefix(name, kmsName) })
	}
	labels := slices.Sorted(maps.Keys(made))
	if is.err != nil {
		return is
	}
	for name, plugin := range g.plugins {
		if !slices.ContainsFunc(labels,
			func(label string) bool { return strings.HasPrefix(label, encryption.LabelOfKMS(name, "")) }) {
			continue // it only reads
		}
		status, err := plugin.Status(ctx)
		switch {
		case err != nil:
			is.unsettled = fmt.Errorf("the plugin %q: %w", name, err)
		case !slices.Contains(labels, encryption.LabelOfKMS(name, status.KeyID)):
			is.unsettled = fmt.Errorf(
				"the plugin %q names the key %q, and this server encrypts with another one yet: it takes a new one within a minute", name, status.KeyID)
		}
	}
	if is.unsettled == nil {
		is.labels = slices.Concat(g.fixed, labels)
		slices.Sort(is.labels)
		is.labels = slices.Compact(is.labels)
		is.probes, is.proved = g.prove(ctx, made)
	}
	return is
}

// probe is a place in the store at which nothing is.
type probe struct{}

// AuthenticatedData implements value.Context.
func (probe) AuthenticatedData() []byte { return []byte("/barque/encryption-probe") }

var probeText = []byte("probe")

// prove decrypts the state's probes for the labels of keys in a KMS. Two KMS may name different
// keys alike: only a value of another server shows that. It returns the own values for all other
// labels.
func (g *generation) prove(ctx context.Context, made map[string][]byte) (probes, proved map[string][]byte) {
	probes, proved = map[string][]byte{}, map[string][]byte{}
	var stored map[string][]byte
	if of := g.all.probes.Load(); of != nil {
		stored = (*of)()
	}
	for label, own := range made {
		if g.decrypts(ctx, label, stored[label]) {
			proved[label] = stored[label]
		} else {
			probes[label] = own
		}
	}
	return probes, proved
}

func (g *generation) decrypts(ctx context.Context, label string, stored []byte) bool {
	for as, name := range g.first {
		plugin, is := strings.CutPrefix(name, kmsName)
		if !is || len(stored) == 0 || !strings.HasPrefix(label, encryption.LabelOfKMS(plugin, "")) {
			continue
		}
		data, _, err := g.transformers[as].TransformFromStorage(ctx, stored, probe{})
		return err == nil && bytes.Equal(data, probeText)
	}
	return false
}

// labels returns a value of each first provider with a matching name, by its label.
func (g *generation) labels(ctx context.Context, right func(name string) bool) (all map[string][]byte, err error) {
	all = map[string][]byte{}
	for as, name := range g.first {
		if name == identity || !right(name) {
			continue
		}
		sealed, err := g.transformers[as].TransformToStorage(ctx, probeText, probe{})
		if err != nil {
			return nil, fmt.Errorf("the provider %s: %w", name, err)
		}
		all[encryption.Label(sealed)] = sealed
	}
	return all, nil
}

// unhealthy returns why a plugin is not healthy, by the last look.
func (g *generation) unhealthy() error {
	if is := g.looked.Load(); is != nil {
		return is.err
	}
	return errNotAsked
}

// unknown returns why it is not known, or about to change, under which keys this server writes.
func (l *looked) unknown() error {
	if l == nil {
		return errNotAsked
	}
	return cmp.Or(l.err, l.unsettled)
}

// check runs upstream's check of the plugins.
func (g *generation) check(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+g.health.Name(), nil)
	if err != nil {
		return err
	}
	return g.health.Check(request)
}

// awaitHealth repeats the check of health until it passes, for some time.
func awaitHealth(ctx context.Context, g *generation) error {
	ctx, cancel := context.WithTimeout(ctx, max(healthWithin, g.grace))
	defer cancel()
	ticks := time.NewTicker(healthEvery)
	defer ticks.Stop()
	for {
		err := g.check(ctx)
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

// Keys is a digest of the keys with which this server encrypts by its file, and of the values of
// the state that it decrypts with those in a KMS; 0: it has no file, or they are not known, or
// about to change, or it decrypts no such value. It is short: gossip has little room.
func (p *Providers) Keys() uint16 {
	g := p.current.Load()
	if g == nil {
		return 0
	}
	is := g.looked.Load()
	if is == nil || is.labels == nil || len(is.probes) > 0 {
		return 0
	}
	text := []byte(strings.Join(is.labels, "\n"))
	for _, label := range slices.Sorted(maps.Keys(is.proved)) {
		text = append(text, is.proved[label]...)
	}
	return max(uint16(crc32.ChecksumIEEE(text)), 1)
}

var errNotAsked = errors.New("the plugins were not asked yet")

// Health returns the check of the plugins, with upstream's name, or nil without a file.
func (p *Providers) Health() healthz.HealthChecker {
	g := p.current.Load()
	if g == nil {
		return nil
	}
	return healthz.NamedCheck(g.health.Name(), func(*http.Request) error { return p.current.Load().unhealthy() })
}

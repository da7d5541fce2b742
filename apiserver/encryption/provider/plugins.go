package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmsservice "k8s.io/kms/pkg/service"
)

// Plugins are looked at apart from requests, each pluginEvery: one that hangs delays no answer of
// /readyz. A look ends within healthWithin.
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
		if bytes.HasPrefix(stored, fmt.Appendf(nil, "%sv2:%s:", kmsPrefix, name)) {
			return true
		}
	}
	return false
}

// followPlugins looks at the plugins until the context ends.
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

// lookAtPlugins asks for the health of the plugins, and for their keys.
func (p *Providers) lookAtPlugins(ctx context.Context) {
	g := p.current.Load()
	ctx, cancel := context.WithTimeout(ctx, max(healthWithin, g.grace))
	defer cancel()
	err := g.check(ctx)
	g.healthy.Store(&err)
	if keys, known := g.keys(ctx); known && p.current.Load() == g && p.keys.Swap(uint32(keys)) != uint32(keys) {
		p.seen.Store(nil)
		p.cfg.Took()
	}
}

// check asks upstream's check of the plugins.
func (g *generation) check(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+g.health.Name(), nil)
	if err != nil {
		return err
	}
	return g.health.Check(request)
}

// keys returns a digest of the keys that the plugins report; 0: there are no plugins. It is not
// known if one of them does not answer. It is short: gossip has little room.
func (g *generation) keys(ctx context.Context) (digest uint16, known bool) {
	if len(g.plugins) == 0 {
		return 0, true
	}
	sum := crc32.NewIEEE()
	for _, name := range slices.Sorted(maps.Keys(g.plugins)) {
		is, err := g.plugins[name].Status(ctx)
		if err != nil {
			return 0, false
		}
		fmt.Fprintf(sum, "%q %q\n", name, is.KeyID)
	}
	return max(uint16(sum.Sum32()), 1), true
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

// Keys is a digest of the keys that the plugins of the file report; 0: there are none, or they are
// not known.
func (p *Providers) Keys() uint16 { return uint16(p.keys.Load()) }

var errNotAsked = errors.New("the plugins were not asked yet")

// healthy returns the outcome of the last look at the plugins.
func (p *Providers) healthy() error {
	if err := p.current.Load().healthy.Load(); err != nil {
		return *err
	}
	return errNotAsked
}

// Health returns the check of the plugins, with upstream's name, or nil without a file.
func (p *Providers) Health() healthz.HealthChecker {
	g := p.current.Load()
	if g == nil {
		return nil
	}
	return healthz.NamedCheck(g.health.Name(), func(*http.Request) error { return p.healthy() })
}

package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/logline"
)

// The pauses between tries to write the objects and to unstage orphans.
const (
	workEvery  = time.Second
	restEvery  = 10 * time.Second
	countsTick = time.Second
)

// Run keeps the node's objects and unstages volumes without a pod, until ctx ends. Volumes stay as
// they are then.
func (p *Plugin) Run(ctx context.Context) error {
	p.informers.StartWithContext(ctx)
	defer func() {
		p.stop(errStopped)
		p.running.Wait()
		p.informers.Shutdown()
	}()
	p.running.Go(func() { p.keepCounts(ctx) })
	var introduced types.UID
	for {
		pause := restEvery
		// A Node object that was deleted and made again has taken the CSINode object with it.
		if node := p.Node(); node != nil && node.UID != introduced {
			if err := p.introduce(ctx); err != nil {
				p.complain(ctx, "cannot make the CSINode object of this node; trying again", err)
				pause = workEvery
			} else {
				introduced = node.UID
			}
		}
		if err := p.withdraw(ctx); err != nil {
			p.complain(ctx, "cannot tell that a CSI driver is gone; trying again", err)
			pause = workEvery
		}
		if err := p.adopt(ctx); err != nil {
			p.complain(ctx, "cannot unstage volumes that no pod has; trying again", err)
		}
		p.mu.Lock()
		news := p.news
		p.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-news:
			// News come in bursts.
			timer.Reset(workEvery)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
		}
	}
}

func (p *Plugin) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		logline.Log(p.Logger, slog.LevelWarn, what, "err", err)
	}
}

// keepCounts asks drivers for the number of volumes that the node takes, as often as their
// CSIDriver objects require.
func (p *Plugin) keepCounts(ctx context.Context) {
	last := map[string]time.Time{}
	tick := time.NewTicker(countsTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for name, d := range p.drivers.all() {
			spec, err := p.specs.Get(name)
			if err != nil || spec.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
				continue
			}
			now, every := p.Now(), time.Duration(*spec.Spec.NodeAllocatableUpdatePeriodSeconds)*time.Second
			if since, ok := last[name]; !ok {
				last[name] = now // it was asked when it registered
			} else if now.Sub(since) >= every {
				last[name] = now
				if err := p.tellOf(ctx, name, d.endpoint, p.objects.count); err != nil {
					p.complain(ctx, "cannot tell how many volumes of a CSI driver this node takes; trying again", err)
				}
			}
		}
	}
}

// introduce makes the CSINode object, with the drivers that there are.
func (p *Plugin) introduce(ctx context.Context) error {
	if _, err := p.objects.ensure(ctx); err != nil {
		return err
	}
	var errs error
	for name, d := range p.drivers.all() {
		errs = errors.Join(errs, p.tellOf(ctx, name, d.endpoint, p.objects.install))
	}
	return errs
}

// tellOf asks a driver for its properties of this node, and writes them.
func (p *Plugin) tellOf(
	ctx context.Context, name, endpoint string, write func(context.Context, string, *csipb.NodeGetInfoResponse) error,
) error {
	s, err := p.dial(name, endpoint)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := s.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("NodeGetInfo of CSI driver %s: %w", name, err)
	}
	return write(ctx, name, info)
}

package devcluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/membership/token"
)

// Rejoin starts a stopped server as a new one. Another server admits it, and then it drops its
// store. It is for a server that was removed from the cluster, or left behind by a recovery. A
// member is not admitted, ends, and keeps its store. Rejoin returns when the server is ready.
func Rejoin(ctx context.Context, dir, name string) error {
	p, err := existing(dir)
	if err != nil {
		return err
	}
	n, err := p.Node(name)
	switch {
	case err != nil:
		return err
	case n.Role != Server:
		return wrong("%s is no server: it has no store to drop", name)
	case n.Process.Alive():
		return fmt.Errorf("%s runs; `%s` stops it", name, p.command("stop", name))
	}
	by, config, err := p.serving(ctx, n)
	if err != nil {
		return fmt.Errorf("let %s join again: %w; nothing was changed", name, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a token at %s: %w", by.Name, err)
	}
	return withToken(ctx, client.Discovery().RESTClient(), func(joinToken string) (runs bool, err error) {
		err = edit(dir, func(now *Plan) (err error) {
			p = now
			if n, err = p.Node(name); err != nil {
				return err
			}
			if n.Process.Alive() {
				return fmt.Errorf("%s runs already", name)
			}
			return p.startWith(n, joinToken, p.rejoinArgs(n, by))
		})
		if err != nil {
			return false, err
		}
		_, err = p.waitServing(ctx, n, startPatience, nil)
		return n.Process.Alive(), err
	})
}

// revokePatience is how long a server is waited for to delete a token.
const revokePatience = 5 * time.Second

// withToken calls join with a join token for a server. When join fails, the token is deleted,
// unless its server runs: the server may be about to join.
func withToken(ctx context.Context, client rest.Interface, join func(joinToken string) (runs bool, err error)) error {
	made, err := token.Create(ctx, client,
		token.Spec{Role: Server, TTL: token.ServerTTL, Uses: token.ServerUses, Description: "barque dev start --wipe"})
	if err != nil {
		return fmt.Errorf("make a token: %w", err)
	}
	runs, err := join(made.Token)
	if err == nil || runs {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokePatience) // also after Ctrl-C
	defer cancel()
	if left := token.Delete(ctx, client, made.ID); left != nil {
		return fmt.Errorf("%w; the join token made for it was not deleted (%v): `barque token delete %s`", err, left,
			made.ID)
	}
	return err
}

// rejoinArgs returns the arguments of a server that drops its store and joins through another one.
func (p *Plan) rejoinArgs(n, by *Node) []string { return append(p.joinArgs(n, by), "--wipe") }

// servingPatience bounds the wait for one running server before the next is tried.
const servingPatience = 3 * time.Second

// serving finds a ready server other than beside, and a client configuration for it. A server that
// was left behind by a recovery is never ready.
func (p *Plan) serving(ctx context.Context, beside *Node) (*Node, *rest.Config, error) {
	var errs []error
	for _, s := range p.servers() {
		if s.Name == beside.Name {
			continue
		}
		if !s.Process.Alive() {
			errs = append(errs, fmt.Errorf("%s does not run", s.Name))
			continue
		}
		config, err := p.waitServing(ctx, s, servingPatience, nil)
		if err == nil {
			return s, config, nil
		}
		errs = append(errs, err)
	}
	return nil, nil, fmt.Errorf("no other server is ready: %w", errors.Join(errs...))
}

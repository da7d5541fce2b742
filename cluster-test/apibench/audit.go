package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/sides"
)

const (
	auditClients = 16 // that send requests at the same time
	auditWrites  = 4000
	auditLists   = 100
	auditListed  = 1000 // objects of each kind in a list
)

// secrets are as large as ConfigMaps. Barque encrypts them, and audits their readers.
var secrets = &kind{
	many: "Secrets", root: "/api/v1", plural: "secrets",
	encodings: []encoding{inProtobuf},
	object: func(namespace, name string, n uint64) object {
		return &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Data:       map[string][]byte{"data": []byte(data(n))},
		}
	},
}

// auditOff are the arguments of servers without an audit log.
var auditOff = []string{"--audit-log-path=" + audit.Off}

// withoutAudit runs three servers without an audit log beside three that have it by default.
func withoutAudit(ctx context.Context, measure func(base, ours *sides.Side) error) error {
	return withBarque(ctx, auditOff, func(base *sides.Side) error {
		base.Name += " without audit"
		return withBarque(ctx, nil, func(ours *sides.Side) error { return measure(base, ours) })
	})
}

// layGuarded makes the objects that are updated and listed, and looks at the memory after that.
func layGuarded(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	for _, k := range []*kind{configMaps, secrets} {
		for namespace, n := range map[string]int{laid: objects, long: auditListed} {
			if err := l.lay(ctx, k, namespace, n); err != nil {
				return nil, err
			}
		}
	}
	w, err := l.weigh(ctx, o.rest)
	return w.figures(fmt.Sprintf("%d objects", 2*(objects+auditListed))), err
}

// useGuarded measures creates, updates and lists of objects in clear and of encrypted ones. The
// audit log has the creates and the updates of both, and the lists of Secrets alone.
func useGuarded(ctx context.Context, _ options, l *load) (figures []figure.Figure, err error) {
	for _, k := range []*kind{configMaps, secrets} {
		for _, do := range []struct {
			what  string
			times int
			once  func(ctx context.Context, client, _ int) error
		}{
			{"create of " + k.many, auditWrites, l.asking(testCase{"create", k, inProtobuf, auditClients})},
			{"update of " + k.many, auditWrites, l.asking(testCase{"update", k, inProtobuf, auditClients})},
			{fmt.Sprintf("list of %d %s", auditListed, k.many), auditLists,
				l.asking(testCase{"list", k, inProtobuf, auditClients})},
		} {
			before, err := l.use()
			if err != nil {
				return nil, err
			}
			began := time.Now()
			if err := l.by(ctx, auditClients, do.times, do.what, do.once); err != nil {
				return nil, err
			}
			took := time.Since(began)
			used, err := l.since(before)
			if err != nil {
				return nil, err
			}
			figures = append(figures,
				figure.Spread("CPU time of all servers for a "+do.what, "ms",
					used.servers.Seconds()*1000/float64(do.times)),
				figure.Spread(do.what+", a second", "", float64(do.times)/took.Seconds()))
		}
		if err := l.emptied(ctx, k); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

// asking returns a client's request of a case.
func (l *load) asking(c testCase) func(ctx context.Context, client, _ int) error {
	return func(ctx context.Context, client, _ int) error {
		_, err := l.request(ctx, c, client)
		return err
	}
}

// emptied deletes the objects that were created, for each repeat to begin with as many.
func (l *load) emptied(ctx context.Context, k *kind) error {
	return l.clients[0].do(ctx, http.MethodDelete, k.path(made, ""), inProtobuf, nil)
}

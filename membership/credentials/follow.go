package credentials

import (
	"context"
	"reflect"
	"time"

	"github.com/barque/barque/pki"
)

// follow renews the certificates where that is due, or other CAs are believed. When the key of
// service accounts alone has changed, it proves the generation and lets the certificates be: a
// renewal is a new administrator's kubeconfig, and new connections to each kubelet.
func (ids *Server) follow(ctx context.Context) error {
	ids.renewing.Lock()
	b := ids.Trust.Bundle()
	if ids.issuedBy != nil && reflect.DeepEqual(*ids.issuedBy, withoutAccounts(b)) && !ids.anyDue(time.Now()) {
		defer ids.renewing.Unlock()
		return ids.prove(b.Generation)
	}
	ids.renewing.Unlock()
	return ids.Renew(ctx)
}

// anyDue reports whether a certificate is due, or not valid by this machine's clock.
func (ids *Server) anyDue(now time.Time) bool {
	for _, t := range ids.terms() {
		if !now.Before(t.Due()) || now.Before(t.NotBefore) {
			return true
		}
	}
	return false
}

// withoutAccounts returns what certificates depend on: all but the keys of service accounts, and
// the progress of an exchange. A step of an exchange of the CA changes the CAs or their order.
func withoutAccounts(b pki.Bundle) pki.Bundle {
	b.Generation, b.Step, b.Since, b.Forced = 0, "", time.Time{}, false
	b.AccountKeys, b.FormerAccountKeys = nil, nil
	return b
}

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/authn"
)

// ExtensionAuthentication is the name of the ConfigMap that extension API servers go by, in
// kube-system.
const ExtensionAuthentication = "extension-apiserver-authentication"

// ensureExtensionAuthentication publishes how extension API servers authenticate users: by the CA
// of the cluster's client certificates, and by the headers of requests that a server has passed on.
// The CA of the latter signs nothing else.
func (o *Objects) ensureExtensionAuthentication(ctx context.Context, client kubernetes.Interface) error {
	ca, err := o.cfg.ClientCA()
	if err != nil {
		return err
	}
	proxyCA, err := o.cfg.ProxyCA()
	if err != nil {
		return err
	}
	want := map[string]string{
		"client-ca-file":                     string(ca),
		"requestheader-client-ca-file":       string(proxyCA),
		"requestheader-allowed-names":        `["` + o.cfg.ProxyClient + `"]`,
		"requestheader-username-headers":     `["` + authn.UserHeader + `"]`,
		"requestheader-uid-headers":          `["` + authn.UIDHeader + `"]`,
		"requestheader-group-headers":        `["` + authn.GroupHeader + `"]`,
		"requestheader-extra-headers-prefix": `["` + authn.ExtraHeaderPrefix + `"]`,
	}
	known := o.told.Load()
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	existing, err := configMaps.Get(ctx, ExtensionAuthentication, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		known = nil
		_, err = configMaps.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ExtensionAuthentication}, Data: want},
			metav1.CreateOptions{})
	case err == nil:
		data := maps.Clone(existing.Data)
		if data == nil {
			data = map[string]string{}
		}
		maps.Copy(data, want)
		if !maps.Equal(data, existing.Data) {
			known, existing.Data = nil, data
			_, err = configMaps.Update(ctx, existing, metav1.UpdateOptions{})
		}
	}
	switch {
	case err == nil && (known == nil || known.ProxyCA != string(proxyCA)):
		known = &Told{string(proxyCA), o.cfg.Now()}
	case err != nil:
		err = fmt.Errorf("ConfigMap %s: %w", ExtensionAuthentication, err)
	}
	o.told.Store(known)
	return err
}

// Told are the CAs that this server has published for extension API servers, and since when.
type Told struct {
	ProxyCA string // PEM
	Since   time.Time
}

// ReadWithin is the time in which extension API servers, which watch the ConfigMap, have read
// it.
const ReadWithin = 10 * time.Second

// ErrNotTold is returned by ToldExtensions until extension API servers know the authorities.
var ErrNotTold = errors.New(
	"extension API servers are not told of them yet, by the ConfigMap kube-system/" + ExtensionAuthentication)

// Told returns what this server has published as the leader; nil before, and while it does not
// lead.
func (o *Objects) Told() *Told { return o.told.Load() }

// ToldExtensions returns nil once this server, as the leader, has published these CAs of
// ProxyClient, in PEM, and extension API servers have had time to read them.
func (o *Objects) ToldExtensions(proxyCA []byte) error {
	return o.told.Load().Check(proxyCA, o.cfg.Now())
}

// Check returns ErrNotTold unless these CAs were published long enough before now.
func (t *Told) Check(proxyCA []byte, now time.Time) error {
	if t == nil || t.ProxyCA != string(proxyCA) || now.Sub(t.Since) < ReadWithin {
		return ErrNotTold
	}
	return nil
}

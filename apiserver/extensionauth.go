package apiserver

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

// ProxyClientName is the common name of the certificate with which servers call extension API
// servers. Those take the user from the headers of a request only when it comes with this name.
// Where one CA is for all purposes, certificates of nodes and users have the same authority, and
// must never carry it.
const ProxyClientName = "barque:front-proxy"

const extensionAuthentication = "extension-apiserver-authentication"

// ensureExtensionAuthentication publishes how extension API servers authenticate users: by the CA
// of the cluster's client certificates, and by the headers of requests that a server has passed on.
// The CA of the latter signs nothing else.
func (s *Server) ensureExtensionAuthentication(ctx context.Context, client kubernetes.Interface) error {
	ca, err := s.cfg.ClientCA()
	if err != nil {
		return err
	}
	proxyCA, err := s.cfg.ProxyCA()
	if err != nil {
		return err
	}
	want := map[string]string{
		"client-ca-file":                     string(ca),
		"requestheader-client-ca-file":       string(proxyCA),
		"requestheader-allowed-names":        `["` + ProxyClientName + `"]`,
		"requestheader-username-headers":     `["` + authn.UserHeader + `"]`,
		"requestheader-uid-headers":          `["` + authn.UIDHeader + `"]`,
		"requestheader-group-headers":        `["` + authn.GroupHeader + `"]`,
		"requestheader-extra-headers-prefix": `["` + authn.ExtraHeaderPrefix + `"]`,
	}
	known := s.told.Load()
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	existing, err := configMaps.Get(ctx, extensionAuthentication, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		known = nil
		_, err = configMaps.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: extensionAuthentication}, Data: want},
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
	case err == nil && (known == nil || known.proxyCA != string(proxyCA)):
		known = &proxyTold{string(proxyCA), s.cfg.Now()}
	case err != nil:
		err = fmt.Errorf("ConfigMap %s: %w", extensionAuthentication, err)
	}
	s.told.Store(known)
	return err
}

// proxyTold are the CAs that this server has published for extension API servers, and since when.
type proxyTold struct {
	proxyCA string
	since   time.Time
}

// extensionsRead is the time in which extension API servers, which watch the ConfigMap, have read
// it.
const extensionsRead = 10 * time.Second

// ErrNotTold is returned by ToldExtensions until extension API servers know the authorities.
var ErrNotTold = errors.New(
	"extension API servers are not told of them yet, by the ConfigMap kube-system/" + extensionAuthentication)

// ToldExtensions returns nil once this server, as the leader, has published these CAs of
// ProxyClient, in PEM, and extension API servers have had time to read them.
func (s *Server) ToldExtensions(proxyCA []byte) error {
	return s.told.Load().check(proxyCA, s.cfg.Now())
}

func (t *proxyTold) check(proxyCA []byte, now time.Time) error {
	if t == nil || t.proxyCA != string(proxyCA) || now.Sub(t.since) < extensionsRead {
		return ErrNotTold
	}
	return nil
}

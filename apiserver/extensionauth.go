package apiserver

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/authn"
)

// ProxyClientName is the common name of the certificate with which servers call extension API
// servers. Those take the user from the headers of a request only when it comes with this name:
// certificates of nodes and users have the same authority, and must never carry it.
const ProxyClientName = "barque:front-proxy"

const extensionAuthentication = "extension-apiserver-authentication"

// ensureExtensionAuthentication tells extension API servers how to know who asks: by the
// authority of the cluster's client certificates, and by the headers of requests that a server
// has let through.
func (s *Server) ensureExtensionAuthentication(ctx context.Context, client kubernetes.Interface) error {
	ca, err := s.cfg.ClientCA()
	if err != nil {
		return err
	}
	want := map[string]string{
		"client-ca-file":                     string(ca),
		"requestheader-client-ca-file":       string(ca),
		"requestheader-allowed-names":        `["` + ProxyClientName + `"]`,
		"requestheader-username-headers":     `["` + authn.UserHeader + `"]`,
		"requestheader-uid-headers":          `["` + authn.UIDHeader + `"]`,
		"requestheader-group-headers":        `["` + authn.GroupHeader + `"]`,
		"requestheader-extra-headers-prefix": `["` + authn.ExtraHeaderPrefix + `"]`,
	}
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	existing, err := configMaps.Get(ctx, extensionAuthentication, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: extensionAuthentication}, Data: want}, metav1.CreateOptions{})
	case err == nil:
		data := maps.Clone(existing.Data)
		if data == nil {
			data = map[string]string{}
		}
		maps.Copy(data, want)
		if !maps.Equal(data, existing.Data) {
			existing.Data = data
			_, err = configMaps.Update(ctx, existing, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", extensionAuthentication, err)
	}
	return nil
}

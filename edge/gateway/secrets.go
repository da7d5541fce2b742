package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/edge/gateway/certs"
)

// Secrets watches the Secrets with certificates and passwords.
type Secrets struct {
	*singles[*corev1.Secret, secretValue]
}

// secretValue is a Secret with the certificate in it.
type secretValue struct {
	secret *corev1.Secret
	pair   *tls.Certificate
	err    error // of the pair
}

// NewSecrets returns an empty set. changed is called when a Secret has changed.
func NewSecrets(client kubernetes.Interface, changed func()) *Secrets {
	return &Secrets{newSingles(&corev1.Secret{}, func(namespace, selector string) cache.ListerWatcher {
		return listWatch(client, client.CoreV1().Secrets(namespace), selector)
	}, func(s *corev1.Secret) secretValue {
		pair, err := pairOf(s)
		return secretValue{s, pair, err}
	}, changed)}
}

// pairOf reads a certificate with its key.
func pairOf(secret *corev1.Secret) (*tls.Certificate, error) {
	chain, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(chain) == 0 || len(key) == 0 {
		return nil, fmt.Errorf("it lacks %s or %s", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, errors.New("it has no valid certificate with its key") // without parts of the key
	}
	return &pair, nil
}

// Certificate returns the certificate in a Secret, or nil.
func (s *Secrets) Certificate(name types.NamespacedName) *tls.Certificate {
	if v := s.get(name); v != nil {
		return v.pair
	}
	return nil
}

// errAbsent is why an object cannot be used that nobody has seen.
var errAbsent = errors.New("it does not exist, or cannot be read yet")

// Problem returns why a Secret has no certificate, or nil.
func (s *Secrets) Problem(name types.NamespacedName) error {
	if v := s.get(name); v != nil {
		return v.err
	}
	return errAbsent
}

// Users returns the users in a Secret: each key is one, or its key auth has lines of htpasswd.
func (s *Secrets) Users(name types.NamespacedName, perKey bool) map[string]string {
	v := s.get(name)
	if v == nil {
		return nil
	}
	users := map[string]string{}
	if perKey {
		for user, hash := range v.secret.Data {
			users[user] = strings.TrimSpace(string(hash))
		}
		return users
	}
	for line := range strings.Lines(string(v.secret.Data["auth"])) {
		if user, hash, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			users[user] = hash
		}
	}
	return users
}

// Authorities watches the ConfigMaps with the CAs of backends and of clients.
type Authorities struct {
	*singles[*corev1.ConfigMap, authorityValue]
}

// authorityValue are the CAs of a ConfigMap.
type authorityValue struct {
	authority *certs.Authority
	err       error
}

// NewAuthorities returns an empty set. changed is called when a ConfigMap has changed.
func NewAuthorities(client kubernetes.Interface, changed func()) *Authorities {
	return &Authorities{newSingles(&corev1.ConfigMap{}, func(namespace, selector string) cache.ListerWatcher {
		return listWatch(client, client.CoreV1().ConfigMaps(namespace), selector)
	}, func(m *corev1.ConfigMap) authorityValue {
		authority, err := authorityOf(m)
		return authorityValue{authority, err}
	}, changed)}
}

// authorityKey is the key of a ConfigMap with the certificates.
const authorityKey = "ca.crt"

// authorityOf reads the certificates in a ConfigMap.
func authorityOf(m *corev1.ConfigMap) (*certs.Authority, error) {
	all := &certs.Authority{}
	for rest := []byte(m.Data[authorityKey]); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("its key %s has a certificate that cannot be read: %w", authorityKey, err)
		}
		all.Certificates = append(all.Certificates, c)
	}
	if len(all.Certificates) == 0 {
		return nil, fmt.Errorf("its key %s has no certificate", authorityKey)
	}
	return all, nil
}

// Authority returns the CAs in a ConfigMap, or nil.
func (a *Authorities) Authority(name types.NamespacedName) *certs.Authority {
	if v := a.get(name); v != nil {
		return v.authority
	}
	return nil
}

// Problem returns why a ConfigMap has no CAs, or nil.
func (a *Authorities) Problem(name types.NamespacedName) error {
	if v := a.get(name); v != nil {
		return v.err
	}
	return errAbsent
}

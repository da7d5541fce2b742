// Package certificates holds the controllers of the certificates.k8s.io API group. One approves
// kubelets' requests, one signs approved requests by the cluster's CA, two clean up, and one
// publishes the CA of API servers as a ClusterTrustBundle.
//
// The key of the CA is not here: a Signer has it. It serves the four signers of Kubernetes that
// kube-controller-manager serves; kubernetes.io/kube-apiserver-client-pod is reserved upstream
// (k8s.io/api v0.37) and has no signer yet.
package certificates

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Config of the controllers.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// CA is published, for the publisher only.
	CA CA
	// Signer signs, for the signing controller only.
	Signer Signer
	// OwnUser reports whether a user is a part of the control plane. Its name is not signed, even
	// where admission lets the request through. Nil reports none.
	OwnUser func(name string) bool
}

func (c Config) ownUser(name string) bool { return c.OwnUser != nil && c.OwnUser(name) }

// CA provides the bundle that verifies API servers.
type CA interface {
	// PEM returns the bundle, and Changed a channel that is closed at its next change.
	PEM() []byte
	Changed() <-chan struct{}
}

// Signer has the key of the cluster's CA.
type Signer interface {
	// Sign signs a certificate for the public key, PEM. The serial number is the signer's, and so
	// is the latest end. It fails when it has no key, and when its own certificate has ended.
	Sign(template *x509.Certificate, public crypto.PublicKey, now time.Time) ([]byte, error)
}

// Controller runs for one term of leadership at a time.
type Controller struct {
	run func(ctx context.Context, client kubernetes.Interface) error
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	return c.run(ctx, client)
}

// parse reads the request of a CertificateSigningRequest.
func parse(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

func has(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return condition(r, kind) != nil
}

func condition(
	r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType,
) *certificatesv1.CertificateSigningRequestCondition {
	for i := range r.Status.Conditions {
		if r.Status.Conditions[i].Type == kind {
			return &r.Status.Conditions[i]
		}
	}
	return nil
}

// Package users gives people certificates of their own, by CertificateSigningRequests, as
// `barque user` does. The request stays in the cluster until its certificate ends: the requests are
// the list of users. The key never leaves the caller's machine.
package users

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/internal/clusterusers"
)

// DefaultTTL is the default validity of a certificate. Its owner cannot renew it. So a stolen
// certificate ends within a working day, and so does the access of a person that has left.
const DefaultTTL = 24 * time.Hour

// The shortest and the longest time, as the signer has them.
const (
	shortestTTL = 10 * time.Minute
	longestTTL  = 365 * 24 * time.Hour
)

// The longest name that a certificate may have (RFC 5280, ub-common-name and ub-organization-name).
const maxName = 64

// signs bounds the wait for the certificate, which the leader signs.
const signs = 30 * time.Second

// Order of a certificate.
type Order struct {
	Name   string
	Groups []string
	TTL    time.Duration
}

// Check returns an error about an invalid order.
func (o Order) Check() error {
	if err := checkName("user", o.Name); err != nil {
		return err
	}
	if strings.HasPrefix(o.Name, "barque:") {
		return fmt.Errorf("the name %q is one of the cluster's own parts: choose another", o.Name)
	}
	seen := map[string]bool{}
	for _, g := range o.Groups {
		if err := checkName("group", g); err != nil {
			return err
		}
		switch {
		case g == clusterusers.AdminGroup:
		case g == "system:masters":
			return fmt.Errorf(
				"the group %s cannot be taken from a user again: give %s, which the ClusterRoleBinding of that name makes administrators", g, clusterusers.AdminGroup)
		case strings.HasPrefix(g, "barque:"):
			return fmt.Errorf("the group %q is one of the cluster's own parts: choose another", g)
		case seen[g]:
			return fmt.Errorf("the group %q is given twice", g)
		}
		seen[g] = true
	}
	if o.TTL < shortestTTL || o.TTL > longestTTL {
		return fmt.Errorf("--ttl %s: want %s to %s", o.TTL, shortestTTL, longestTTL)
	}
	return nil
}

func checkName(kind, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of a %s is empty", kind)
	case len(name) > maxName:
		return fmt.Errorf("the %s %q has %d bytes: a certificate has room for %d", kind, name, len(name), maxName)
	case strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) >= 0:
		return fmt.Errorf("the %s %q has characters that cannot be seen", kind, name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("the %s %q begins or ends with a space", kind, name)
	case strings.HasPrefix(name, "system:"):
		if name == "system:masters" {
			return nil // Check has more to say
		}
		return fmt.Errorf("the %s %q is reserved for Kubernetes' own parts: choose another", kind, name)
	}
	return nil
}

// Info is a user's certificate.
type Info struct {
	Name    string    `json:"name"`
	Groups  []string  `json:"groups,omitempty"`
	Serial  string    `json:"serial"` // hexadecimal
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`      // the user that made it
	Request string    `json:"request"` // the CertificateSigningRequest
	// Revoked is the reason why it counts no more; empty while it counts.
	Revoked string `json:"revoked,omitempty"`
}

// Made is a user's new certificate.
type Made struct {
	Info
	Certificate []byte `json:"certificate"` // PEM
	Key         []byte `json:"key"`         // PEM
}

// Add makes a certificate. On an error after the request was made, the request is deleted.
func Add(ctx context.Context, client kubernetes.Interface, order Order) (*Made, error) {
	if err := order.Check(); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: order.Name, Organization: order.Groups}}, key)
	if err != nil {
		return nil, err
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	r, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "barque-user-",
			Labels: map[string]string{clusterusers.RequestLabel: ""}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:           pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName:        certificatesv1.KubeAPIServerClientSignerName,
			ExpirationSeconds: new(int32(min(order.TTL/time.Second, math.MaxInt32))),
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth,
				certificatesv1.UsageDigitalSignature},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a certificate: %w", err)
	}
	made, err := approved(ctx, client, r, key)
	if err != nil {
		// A request whose key is lost would be listed as a user.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), signs)
		defer cancel()
		return nil, errors.Join(err, requests.Delete(clean, r.Name, metav1.DeleteOptions{}))
	}
	return made, nil
}

// approved approves a request, and waits for its certificate.
func approved(
	ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest, key crypto.Signer,
) (*Made, error) {
	requests := client.CertificatesV1().CertificateSigningRequests()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "BarqueUserAdd",
		Message: "approved by its author with `barque user add`", LastUpdateTime: metav1.Now()})
	if _, err := requests.UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("approve the certificate request %s: %w", r.Name, err)
	}
	r, err := signed(ctx, client, r.Name)
	if err != nil {
		return nil, err
	}
	info, cert, err := infoOf(r)
	if err != nil {
		return nil, err
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("the certificate of the request %s is for another key", r.Name)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &Made{Info: *info, Certificate: r.Status.Certificate,
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})}, nil
}

// signed waits until the leader has signed a request.
func signed(
	ctx context.Context, client kubernetes.Interface, name string,
) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, signs)
	defer cancel()
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for {
		r, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			for _, c := range r.Status.Conditions {
				if c.Type == certificatesv1.CertificateFailed || c.Type == certificatesv1.CertificateDenied {
					return nil, fmt.Errorf("the certificate request %s was refused: %s", name, c.Message)
				}
			}
			if len(r.Status.Certificate) > 0 {
				return r, nil
			}
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf(
					"the leader has not signed the certificate request %s within %s: see `barque cluster status`", name,
					signs)
			}
			return nil, err
		case <-ticks.C:
		}
	}
}

// List returns the users whose certificates have not ended, by name and age. revoked returns the
// reason why a certificate counts no more, or nil.
func List(
	ctx context.Context, client kubernetes.Interface, now time.Time, revoked func(*x509.Certificate) error,
) ([]Info, error) {
	requests, err := client.CertificatesV1().CertificateSigningRequests().List(ctx,
		metav1.ListOptions{LabelSelector: clusterusers.RequestLabel})
	if err != nil {
		return nil, fmt.Errorf("list certificate requests: %w", err)
	}
	out := []Info{}
	for i := range requests.Items {
		info, cert, err := infoOf(&requests.Items[i])
		if err != nil || !now.Before(info.Expires) {
			continue
		}
		if why := revoked(cert); why != nil {
			info.Revoked = why.Error()
		}
		out = append(out, *info)
	}
	slices.SortFunc(out, func(a, b Info) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), a.Issued.Compare(b.Issued),
			strings.Compare(a.Request, b.Request))
	})
	return out, nil
}

// infoOf reads the certificate of a request.
func infoOf(r *certificatesv1.CertificateSigningRequest) (*Info, *x509.Certificate, error) {
	block, _ := pem.Decode(r.Status.Certificate)
	if block == nil {
		return nil, nil, fmt.Errorf("the request %s has no certificate", r.Name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("the certificate of the request %s: %w", r.Name, err)
	}
	return &Info{Name: cert.Subject.CommonName, Groups: cert.Subject.Organization,
		Serial: fmt.Sprintf("%x", cert.SerialNumber),
		Issued: r.CreationTimestamp.Time, Expires: cert.NotAfter, By: r.Spec.Username, Request: r.Name}, cert, nil
}

package apiserver

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/barque/barque/apiserver/authn"
	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/frontproxy"
	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/apiserver/nodeauth"
	"github.com/barque/barque/apiserver/pageauth"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/refusals"
)

// security has the authentication and authorization of a server.
type security struct {
	authenticator authenticator.Request
	tokens        authenticator.Request // of bearer tokens, for TokenReview
	ended         func(ctx context.Context, token string) error
	issuer        *authn.Issuer
	objects       *authn.Objects

	// authorizer decides for requests, and for the questions of admission and validation about
	// their users. It notices refusals of the control plane. reviews decides for reviews.
	authorizer, reviews authorizer.Authorizer
	rbac                *rbac.Authorizer
	rules               authorizer.RuleResolver
}

func (s *Server) newSecurity() (*security, error) {
	sa := &s.cfg.ServiceAccounts
	issuer, err := authn.NewIssuer(sa.Issuer, sa.Keys, s.cfg.Now)
	if err != nil {
		return nil, err
	}
	core := s.informers.Core().V1()
	objects := &authn.Objects{
		Client:          s.client,
		ServiceAccounts: core.ServiceAccounts().Lister(),
		Pods:            core.Pods().Lister(),
		Nodes:           core.Nodes().Lister(),
		Reserved:        rbac.IsController,
	}
	config := authn.Config{
		ClientCAs:      s.port.ClientCA().VerifyOptions,
		ProxyCAs:       s.port.OwnProxyCA().VerifyOptions,
		Revoked:        s.cfg.Revoked,
		ProxyClients:   []string{ProxyClientName},
		Issuer:         issuer,
		Audiences:      sa.Audiences,
		Objects:        objects,
		TokenFile:      s.cfg.TokenFile,
		Logins:         s.cfg.Logins,
		PageSessions:   s.cfg.PageSessions,
		Process:        s.loopback,
		AnonymousPaths: s.cfg.AnonymousPaths,
		NoAnonymous:    s.cfg.NoAnonymous,
		Now:            s.cfg.Now,
	}
	requests, tokens, err := authn.New(config)
	if err != nil {
		return nil, err
	}
	sec := &security{
		authenticator: requests,
		tokens:        tokens,
		ended:         authn.Ended(config),
		issuer:        issuer,
		objects:       objects,
	}
	return sec, s.newAuthorizer(sec)
}

// podsOf lists the pods that are bound to a node now.
func (s *Server) podsOf(ctx context.Context, node string) ([]*corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// requestNode returns the nodes of the requests for certificates that this server has seen.
func (s *Server) requestNode() nodeauth.RequestNode {
	if !s.serves(certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests")) {
		return func(string, string) string { return "" }
	}
	requests := s.informers.Certificates().V1().PodCertificateRequests().Lister()
	return func(namespace, name string) string {
		r, err := requests.PodCertificateRequests(namespace).Get(name)
		if err != nil {
			return ""
		}
		return string(r.Spec.NodeName)
	}
}

// nodeVolumes are the claims, volumes and attachments that this server has seen.
type nodeVolumes struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	attachments storagelisters.VolumeAttachmentLister
}

// noVolumes is for servers without such resources.
type noVolumes struct{}

var errNotServed = errors.New("this server has no such objects")

func (noVolumes) Claim(string, string) (*corev1.PersistentVolumeClaim, error) {
	return nil, errNotServed
}

func (noVolumes) Volume(string) (*corev1.PersistentVolume, error) { return nil, errNotServed }

func (noVolumes) Attachment(string) (*storagev1.VolumeAttachment, error) { return nil, errNotServed }

func (s *Server) nodeVolumes() nodeauth.Volumes {
	core := corev1.SchemeGroupVersion
	if !s.serves(core.WithResource("persistentvolumes")) || !s.serves(core.WithResource("persistentvolumeclaims")) ||
		!s.serves(storagev1.SchemeGroupVersion.WithResource("volumeattachments")) {
		return noVolumes{}
	}
	return nodeVolumes{
		s.informers.Core().V1().PersistentVolumeClaims().Lister(), s.informers.Core().V1().PersistentVolumes().Lister(),
		s.informers.Storage().V1().VolumeAttachments().Lister(),
	}
}

// readVolume reads a volume from the store.
func (s *Server) readVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	volume, err := s.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return volume, err
}

// Claim implements nodeauth.Volumes.
func (v nodeVolumes) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return v.claims.PersistentVolumeClaims(namespace).Get(name)
}

// Volume implements nodeauth.Volumes.
func (v nodeVolumes) Volume(name string) (*corev1.PersistentVolume, error) {
	return v.volumes.Get(name)
}

// Attachment implements nodeauth.Volumes.
func (v nodeVolumes) Attachment(name string) (*storagev1.VolumeAttachment, error) {
	return v.attachments.Get(name)
}

func (s *Server) newAuthorizer(sec *security) error {
	r := s.informers.Rbac().V1()
	sec.rbac = rbac.NewAuthorizer(r.Roles().Lister(), r.RoleBindings().Lister(), r.ClusterRoles().Lister(),
		r.ClusterRoleBindings().Lister())
	pods, rules := s.informers.Core().V1().Pods().Informer(), nodeauth.RoleRules(rbac.NodeRules(), rbac.Allows)
	nodes, err := nodeauth.New(pods, s.podsOf, s.requestNode(), s.nodeVolumes(), s.readVolume, s.cfg.NeedsPassword,
		rules)
	if err != nil {
		return err
	}
	decides, rulesOf, err := s.cfg.Authorizers.Assemble(authorizers.Builtin{
		Node: gatewayauth.New(nodes, s.cfg.GatewayNames), RBAC: reasonWhenUnsynced{sec.rbac, s.unsynced},
		Rules: sec.rbac,
	})
	if err != nil {
		return fmt.Errorf("authorizers: %w", err)
	}
	sec.reviews, sec.rules = pageauth.Authorizer{Authorizer: decides}, rulesOf
	sec.authorizer = refusals.New(sec.reviews, rbac.ControlPlane(), s.logger, s.cfg.Now)
	s.defaults = func() bool {
		return !s.serves(rbacv1.SchemeGroupVersion.WithResource("clusterroles")) || rbac.Reconciled(r)
	}
	return nil
}

// authorities are the CAs that a certificate must come from: those of clients, or of API servers
// that name their users in headers.
func (s *Server) authorities(leaf *x509.Certificate) (x509.VerifyOptions, bool) {
	if leaf.Subject.CommonName == ProxyClientName {
		return s.port.OwnProxyCA().VerifyOptions()
	}
	return s.port.ClientCA().VerifyOptions()
}

// frontProxy returns the authenticating proxy of users, or nil.
func (s *Server) frontProxy() *frontproxy.Proxy {
	if s.cfg.Logins == nil {
		return nil
	}
	return s.cfg.Logins.FrontProxy()
}

package admission

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// authorizing is an authorizer by a function.
type authorizing func(authorizer.Attributes) bool

func (f authorizing) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if f(a) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// TestNodesAskForCertificatesOfTheirPods: a request is refused if any one of its fields names an
// object of another node, or an earlier object.
func TestNodesAskForCertificatesOfTheirPods(t *testing.T) {
	const signer = "example.com/s"
	using := newPod(func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.ServiceAccountName = "n1", "robot"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "b",
				VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}},
						{PodCertificate: &corev1.PodCertificateProjection{SignerName: signer}}}}}},
		}
	})
	elsewhere := using.DeepCopy()
	elsewhere.Name, elsewhere.UID, elsewhere.Spec.NodeName = "elsewhere", "pod-2", "n2"
	mirror := using.DeepCopy()
	mirror.Name, mirror.UID, mirror.Annotations = "mirror", "pod-3",
		map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	plain := newPod(func(p *corev1.Pod) {
		p.Name, p.UID, p.Spec.NodeName, p.Spec.ServiceAccountName = "plain", "pod-4", "n1", "robot"
	})
	driven := plain.DeepCopy()
	driven.Name, driven.UID, driven.Spec.ServiceAccountName = "driven", "pod-5", "driver"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-1"}}
	account := func(name string, uid types.UID) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}}
	}
	now := []runtime.Object{using, elsewhere, mirror, plain, driven, node, account("robot", "sa-1"),
		account("driver", "sa-2")}
	client := fake.NewClientset(now...)
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	// The informers are behind: they show objects of these names that were there before.
	for _, err := range []error{
		core.Nodes().Informer().GetIndexer().Add(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-0"}}),
		core.ServiceAccounts().Informer().GetIndexer().Add(account("robot", "sa-0")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n := NewNodeRestriction(core, client, authorizing(func(a authorizer.Attributes) bool {
		return a.GetVerb() == "request-serviceaccounts-podcertificate-signer" &&
			a.GetAPIGroup() == "certificates.k8s.io" &&
			a.GetResource() == "example.com:s" && a.GetNamespace() == "ns" && a.GetName() == "driver" &&
			a.GetUser().GetName() == "system:node:n1"
	}), nil, nil)
	kubelet := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	type spec = certificatesv1.PodCertificateRequestSpec
	for _, c := range []struct {
		name   string
		change func(*spec)
		want   string // part of why it is refused; "" is allowed
	}{
		{"its pod", func(*spec) {}, ""},
		{"another node", func(s *spec) { s.NodeName = "n2" }, "on node"},
		{"a node of before", func(s *spec) { s.NodeUID = "node-9" }, "has UID node-1"},
		{"no such pod", func(s *spec) { s.PodName = "x" }, "cannot be looked up"},
		{"a pod of before", func(s *spec) { s.PodUID = "pod-9" }, "is not there"},
		{"a pod elsewhere", func(s *spec) { s.PodName, s.PodUID = elsewhere.Name, elsewhere.UID },
			"does not run on it"},
		{"a mirror pod", func(s *spec) { s.PodName, s.PodUID = mirror.Name, mirror.UID }, "mirror pod"},
		{"another account", func(s *spec) { s.ServiceAccountName, s.ServiceAccountUID = "driver", "sa-2" },
			"runs as robot"},
		{"an account of before", func(s *spec) { s.ServiceAccountUID = "sa-9" }, "is not there"},
		{"another signer", func(s *spec) { s.SignerName = "example.com/t" }, "no podCertificate volume"},
		{"a pod without the volume", func(s *spec) { s.PodName, s.PodUID = plain.Name, plain.UID },
			"no podCertificate volume"},
		{"a pod without the volume, allowed", func(s *spec) {
			s.PodName, s.PodUID, s.ServiceAccountName, s.ServiceAccountUID = driven.Name, driven.UID, "driver", "sa-2"
		}, ""},
	} {
		r := &certificatesv1.PodCertificateRequest{Spec: spec{
			SignerName: signer, PodName: using.Name, PodUID: using.UID, ServiceAccountName: "robot",
			ServiceAccountUID: "sa-1", NodeName: "n1", NodeUID: "node-1",
		}}
		c.change(&r.Spec)
		err := n.Validate(t.Context(),
			request{obj: r, group: "certificates.k8s.io", resource: "podcertificaterequests",
				user: kubelet}.attributes(), nil)
		if c.want == "" && err != nil ||
			c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	for _, r := range []request{
		{op: admission.Delete}, {op: admission.Update}, {op: admission.Update, subresource: "status"},
	} {
		r.obj, r.old = &certificatesv1.PodCertificateRequest{}, &certificatesv1.PodCertificateRequest{}
		r.group, r.resource, r.user = "certificates.k8s.io", "podcertificaterequests", kubelet
		if err := n.Validate(t.Context(), r.attributes(), nil); !apierrors.IsForbidden(err) {
			t.Errorf("%s %s: %v", r.op, r.subresource, err)
		}
	}
}

// asked is a request for a certificate of a subject, PEM.
func asked(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestNodesAskForTheirOwnCertificates: a node cannot become another one.
func TestNodesAskForTheirOwnCertificates(t *testing.T) {
	client := fake.NewClientset()
	n := NewNodeRestriction(informers.NewSharedInformerFactory(client, 0).Core().V1(), client, grants{}, nil, nil)
	kubelet := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	for _, c := range []struct {
		signer, name string
		ok           bool
	}{
		{certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:n1", true},
		{certificatesv1.KubeletServingSignerName, "system:node:n1", true},
		{certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:n2", false},
		{certificatesv1.KubeletServingSignerName, "system:node:n2", false},
		{certificatesv1.KubeletServingSignerName, "n1", false},
		{"example.com/s", "anybody", true},
	} {
		r := newRequest(func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = c.signer
			r.Spec.Request = asked(t, pkix.Name{CommonName: c.name})
		})
		err := n.Validate(t.Context(),
			request{obj: r, group: "certificates.k8s.io", resource: "certificatesigningrequests",
				user: kubelet}.attributes(), nil)
		if (err == nil) != c.ok || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s by %s: %v", c.name, c.signer, err)
		}
	}
	torn := newRequest(func(r *certificatesv1.CertificateSigningRequest) {
		r.Spec.SignerName = certificatesv1.KubeletServingSignerName
	})
	if err := n.Validate(t.Context(),
		request{obj: torn, group: "certificates.k8s.io", resource: "certificatesigningrequests",
			user: kubelet}.attributes(), nil); !apierrors.IsForbidden(err) {
		t.Errorf("a request that cannot be parsed: %v", err)
	}
}

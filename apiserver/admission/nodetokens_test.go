package admission

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAudiencesOfNodes: a node gets tokens of its pods for the audiences that they have, and for no
// other program.
func TestAudiencesOfNodes(t *testing.T) {
	projected := func(audience string) corev1.Volume {
		return corev1.Volume{Name: "p",
			VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{}},
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience}}}}}}
	}
	claim := func(name string) corev1.Volume {
		return corev1.Volume{Name: "c",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
	}
	inline := corev1.Volume{Name: "i",
		VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "vault.example.com"}}}
	unknown := corev1.Volume{Name: "i",
		VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "unknown.example.com"}}}
	ephemeral := corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	bound := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	volume := func(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	}
	for name, c := range map[string]struct {
		volumes   []corev1.Volume
		audiences []string
		allowed   bool // by RBAC
		want      string
	}{
		"the API server": {[]corev1.Volume{projected("")}, nil, false, ""},
		"of a projected token": {[]corev1.Volume{projected(""), projected("vault")}, []string{"vault"},
			false, ""},
		"another one": {[]corev1.Volume{projected(""), projected("vault")},
			[]string{"sts.amazonaws.com"}, false, `audience "sts.amazonaws.com" not found in pod spec volume`},
		"the API server, not mounted": {[]corev1.Volume{projected("vault")}, nil, false,
			`audience "" not found`},
		"two of the pod's": {[]corev1.Volume{projected("a"), projected("b")}, []string{"a", "b"},
			false, "may only request 0 or 1 audiences"},
		"of an inline driver":      {[]corev1.Volume{inline}, []string{"vault"}, false, ""},
		"of a claim's driver":      {[]corev1.Volume{claim("c")}, []string{"vault"}, false, ""},
		"of an ephemeral volume's": {[]corev1.Volume{ephemeral}, []string{"vault"}, false, ""},
		"another than a driver's": {[]corev1.Volume{claim("c"), inline}, []string{"sts.amazonaws.com"},
			false, "not found in pod spec volume"},
		"a claim without a driver": {[]corev1.Volume{claim("local")}, []string{"vault"}, false,
			"not found in pod spec volume"},
		"a claim that is not bound": {[]corev1.Volume{claim("unbound")}, []string{"vault"}, false,
			"not found in pod spec volume"},
		"an unknown driver's, then another's": {[]corev1.Volume{unknown, inline}, []string{"vault"}, false, ""},
		"an unknown driver's": {[]corev1.Volume{unknown}, []string{"vault"}, false,
			`volume i: csidrivers.storage.k8s.io "unknown.example.com" not found`},
		"allowed by RBAC": {nil, []string{"registry.example.com"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(func(p *corev1.Pod) {
				p.Namespace, p.Spec.NodeName, p.Spec.ServiceAccountName, p.Spec.Volumes = "default", "n1", "robot",
					c.volumes
			})
			client := fake.NewClientset([]runtime.Object{pod,
				&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "vault.example.com"},
					Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}}}},
				bound("c", "pv"), bound(pod.Name+"-e", "pv"), bound("local", "dir"), bound("unbound", ""),
				volume("pv",
					corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "vault.example.com"}}),
				volume("dir", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}}),
			}...)
			n := NewNodeRestriction(informers.NewSharedInformerFactory(client, 0).Core().V1(), client,
				authorizing(func(a authorizer.Attributes) bool {
					return c.allowed && a.GetVerb() == requestAudience && a.GetResource() == c.audiences[0] &&
						a.GetName() == "robot" && a.GetNamespace() == "default"
				}), nil, nil)
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: c.audiences,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
					UID: pod.UID}}}
			a := admission.NewAttributesRecord(request, nil,
				authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), "default", "robot",
				corev1.SchemeGroupVersion.WithResource("serviceaccounts"), "token", admission.Create, nil, false,
				&user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}})
			err := n.Admit(t.Context(), a, nil)
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

package nodeauth

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/internal/localpv"
)

func pod(name, node string, spec corev1.PodSpec) *corev1.Pod {
	spec.NodeName = node
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec}
}

// withClaims adds claims that were made for a pod.
func withClaims(p *corev1.Pod) *corev1.Pod {
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "a", ResourceClaimName: new("by-status")},
		{Name: "b"}}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "by-extension"}
	return p
}

// newAuthorizer returns one whose informer is empty.
func newAuthorizer(t *testing.T, list ListPods) *Authorizer {
	informer := informers.NewSharedInformerFactory(fake.NewClientset(), time.Hour).Core().V1().Pods().Informer()
	requests := func(namespace, name string) string {
		return map[string]string{"ns/mine": "n1", "ns/other": "n2"}[namespace+"/"+name]
	}
	a, err := New(informer, list, requests, volumesOf{}, volumesOf{}.read,
		func(node, namespace, name string) bool {
			return node == "n1" && namespace == "kube-system" && name == "bgp"
		},
		func(attrs authorizer.Attributes) bool { return attrs.GetVerb() != "escalate" })
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// read knows two volumes more, which no informer has seen yet.
func (v volumesOf) read(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	switch volume, err := v.Volume(name); {
	case err == nil:
		return volume, nil
	case name == "new":
		return &corev1.PersistentVolume{
				Spec: corev1.PersistentVolumeSpec{
					ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claims-made"}}},
			nil
	case name == "new-local":
		return localOn("n1"), nil
	case name == "broken":
		return nil, errors.New("the store does not answer")
	}
	return nil, nil
}

// volumesOf has a claim, by-claim, of a CSI volume with Secrets, and an attachment to each node.
type volumesOf struct{}

func (volumesOf) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	if namespace+"/"+name != "ns/by-claim" {
		return nil, errors.New("no such claim")
	}
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}, nil
}

// localOn is a local volume of a node.
func localOn(node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{localpv.NodeLabel: node},
			Annotations: map[string]string{localpv.ProvisionedBy: localpv.Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}},
	}
}

func (volumesOf) Volume(name string) (*corev1.PersistentVolume, error) {
	claimed := func(namespace, name string) (*corev1.PersistentVolume, error) {
		return &corev1.PersistentVolume{
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: name}}}, nil
	}
	switch name {
	case "elsewhere":
		return claimed("elsewhere", "by-claim")
	case "other":
		return claimed("ns", "x")
	case "free":
		return &corev1.PersistentVolume{}, nil
	case "local-n1":
		return localOn("n1"), nil
	case "local-n2":
		return localOn("n2"), nil
	case "pv":
	default:
		return nil, errors.New("no such volume")
	}
	secret := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "drivers", Name: name}
	}
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "by-claim", UID: "c"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodeStageSecretRef: secret("stage"), NodePublishSecretRef: secret("publish"),
			NodeExpandSecretRef:        secret("expand"),
			ControllerPublishSecretRef: secret("attach"),
		}},
	}}, nil
}

func (volumesOf) Attachment(name string) (*storagev1.VolumeAttachment, error) {
	if name == "gone" {
		return nil, errors.New("no such attachment")
	}
	return &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: name}}, nil
}

func kubelet(node string) user.Info {
	return &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup}}
}

func TestAuthorize(t *testing.T) {
	a := newAuthorizer(t, func(context.Context, string) ([]*corev1.Pod, error) { return nil, nil })
	env := func(v corev1.EnvVarSource) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &v}}}}}
	}
	for _, p := range []*corev1.Pod{
		pod("env", "n1",
			env(
				corev1.EnvVarSource{
					SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: "by-env"}}})),
		pod("volume", "n1", corev1.PodSpec{ServiceAccountName: "robot", Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "by-volume"}}},
			{VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{
						LocalObjectReference: corev1.LocalObjectReference{Name: "projected"}}}}}}},
		}}),
		pod("devices", "n1",
			corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("by-name")}}}),
		withClaims(pod("made", "n1", corev1.PodSpec{})),
		pod("claims", "n1", corev1.PodSpec{Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "by-claim"}}},
			{Name: "made", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}}),
		pod("pull", "n1", corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}),
		pod("elsewhere", "n2",
			env(
				corev1.EnvVarSource{
					SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: "other-node"}}})),
	} {
		if err := a.pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	on := func(verb, resource, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Resource: resource, Name: name, Namespace: "ns",
			ResourceRequest: true}
	}
	in := func(namespace string, of authorizer.AttributesRecord) authorizer.AttributesRecord {
		of.Namespace = namespace
		return of
	}
	by := func(field, value string) authorizer.AttributesRecord {
		r := on("list", "pods", "")
		r.FieldSelectorRequirements = fields.OneTermEqualSelector(field, value).Requirements()
		return r
	}
	selected := func(node string) authorizer.AttributesRecord { return by("spec.nodeName", node) }
	devices := func(verb, resource, name string) authorizer.AttributesRecord {
		r := on(verb, resource, name)
		r.APIGroup = "resource.k8s.io"
		return r
	}
	slicesOf := func(node string) authorizer.AttributesRecord {
		r := devices("deletecollection", "resourceslices", "")
		r.FieldSelectorRequirements = fields.OneTermEqualSelector("spec.nodeName", node).Requirements()
		return r
	}
	certificates := func(verb, name, node string) authorizer.AttributesRecord {
		r := on(verb, "podcertificaterequests", name)
		r.APIGroup = "certificates.k8s.io"
		if node != "" {
			r.FieldSelectorRequirements = fields.OneTermEqualSelector("spec.nodeName", node).Requirements()
		}
		return r
	}
	statusOf := certificates("update", "mine", "")
	statusOf.Subresource = "status"
	bundles := func(verb string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: "certificates.k8s.io", Resource: "clustertrustbundles",
			ResourceRequest: true}
	}
	lease := func(verb, name, namespace string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: "coordination.k8s.io", Resource: "leases", Name: name,
			Namespace: namespace, ResourceRequest: true}
	}
	volumes := func(verb, selector string) authorizer.AttributesRecord {
		r := authorizer.AttributesRecord{Verb: verb, Resource: "persistentvolumes", ResourceRequest: true}
		if selector != "" {
			requirements, err := labels.ParseToRequirements(selector)
			if err != nil {
				t.Fatal(err)
			}
			r.LabelSelectorRequirements = requirements
		}
		return r
	}
	attachments := func(name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: "get", APIGroup: "storage.k8s.io", Resource: "volumeattachments",
			Name: name, ResourceRequest: true}
	}
	otherNamespace := on("get", "secrets", "by-env")
	otherNamespace.Namespace = "elsewhere"
	for _, c := range []struct {
		name  string
		attrs authorizer.AttributesRecord
		want  bool
	}{
		{"secret in the environment", on("get", "secrets", "by-env"), true},
		{"secret in a volume", on("get", "secrets", "by-volume"), true},
		{"pull secret", on("get", "secrets", "pull"), true},
		{"secret of another node's pod", on("get", "secrets", "other-node"), false},
		{"same name, other namespace", otherNamespace, false},
		{"all secrets", on("list", "secrets", ""), false},
		{"projected config map", on("get", "configmaps", "projected"), true},
		{"unrelated config map", on("get", "configmaps", "x"), false},
		{"rules of cluster DNS", in("kube-system", on("watch", "configmaps", "coredns-custom")), true},
		{"rules of its name elsewhere", on("watch", "configmaps", "coredns-custom"), false},
		{"another config map there", in("kube-system", on("watch", "configmaps", "x")), false},
		{"all config maps there", in("kube-system", on("list", "configmaps", "")), false},
		{"token of a used account", on("create", "serviceaccounts", "robot"), true},
		{"token of another account", on("create", "serviceaccounts", "admin"), false},
		{"own pods", selected("n1"), true},
		{"pods of another node", selected("n2"), false},
		{"what policies need of all pods", on("list", "pods", ""), true},
		{"pods by another field", by("spec.serviceAccountName", "robot"), false},
		{"own pod", on("get", "pods", "env"), true},
		{"another node's pod", on("get", "pods", "elsewhere"), false},
		{"makes a lease, which admission narrows", lease("create", "", "kube-node-lease"), true},
		{"reads its lease", lease("get", "n1", "kube-node-lease"), true},
		{"renews its lease", lease("update", "n1", "kube-node-lease"), true},
		{"patches its lease", lease("patch", "n1", "kube-node-lease"), true},
		{"deletes its lease", lease("delete", "n1", "kube-node-lease"), true},
		{"reads another lease", lease("get", "n2", "kube-node-lease"), false},
		{"renews another lease", lease("update", "n2", "kube-node-lease"), false},
		{"deletes another lease", lease("delete", "n2", "kube-node-lease"), false},
		{"all leases", lease("list", "", "kube-node-lease"), false},
		{"deletes all leases", lease("deletecollection", "", "kube-node-lease"), false},
		{"makes a lease elsewhere", lease("create", "", "ns"), false},
		{"renews a lease of its name elsewhere", lease("update", "n1", "ns"), false},
		{"claim for devices", devices("get", "resourceclaims", "by-name"), true},
		{"claim made for a pod", devices("get", "resourceclaims", "by-status"), true},
		{"claim made for extended resources", devices("get", "resourceclaims", "by-extension"), true},
		{"unrelated claim", devices("get", "resourceclaims", "x"), false},
		{"all claims", devices("list", "resourceclaims", ""), false},
		{"own slices", slicesOf("n1"), true},
		{"slices of another node", slicesOf("n2"), false},
		{"all slices", devices("deletecollection", "resourceslices", ""), false},
		{"asks for a certificate of a pod", certificates("create", "", ""), true},
		{"its requests", certificates("watch", "", "n1"), true},
		{"its requests, listed", certificates("list", "", "n1"), true},
		{"its request", certificates("get", "mine", ""), true},
		{"a request of another node", certificates("get", "other", ""), false},
		{"a request that nobody knows", certificates("get", "x", ""), false},
		{"requests of another node", certificates("list", "", "n2"), false},
		{"all requests", certificates("watch", "", ""), false},
		{"deletes its request", certificates("delete", "mine", ""), false},
		{"changes its request", certificates("update", "mine", ""), false},
		{"says what became of its request", statusOf, false},
		{"trust bundles", bundles("watch"), true},
		{"local volumes on it", volumes("list", "barque.io/local-volume-node=n1"), true},
		{"watches local volumes on it", volumes("watch", "barque.io/local-volume-node=n1,a=b"), true},
		{"local volumes on another node", volumes("watch", "barque.io/local-volume-node=n2"), false},
		{"local volumes on two nodes", volumes("list", "barque.io/local-volume-node in (n1,n2)"), false},
		{"local volumes not on it", volumes("list", "barque.io/local-volume-node!=n1"), false},
		{"all volumes", volumes("list", ""), false},
		{"volume of a pod's claim", on("get", "persistentvolumes", "pv"), true},
		{"volume that only the store knows", on("get", "persistentvolumes", "new"), true},
		{"volume of a claim of that name elsewhere", on("get", "persistentvolumes", "elsewhere"), false},
		{"volume of no pod's claim", on("get", "persistentvolumes", "other"), false},
		{"volume without a claim", on("get", "persistentvolumes", "free"), false},
		{"volume that is not there", on("get", "persistentvolumes", "none"), false},
		{"local volume on it", on("get", "persistentvolumes", "local-n1"), true},
		{"local volume on it that only the store knows", on("get", "persistentvolumes", "new-local"), true},
		{"local volume on another node", on("get", "persistentvolumes", "local-n2"), false},
		{"claim of a pod", on("get", "persistentvolumeclaims", "by-claim"), true},
		{"claim made for a pod", on("get", "persistentvolumeclaims", "claims-made"), true},
		{"claim of no pod", on("get", "persistentvolumeclaims", "x"), false},
		{"all claims", on("list", "persistentvolumeclaims", ""), false},
		{"secret to stage the volume of a claim", in("drivers", on("get", "secrets", "stage")), true},
		{"secret to publish it", in("drivers", on("get", "secrets", "publish")), true},
		{"secret to expand it", in("drivers", on("get", "secrets", "expand")), true},
		{"watches it", in("drivers", on("watch", "secrets", "expand")), false},
		{"secret of the driver's controller", in("drivers", on("get", "secrets", "attach")), false},
		{"secret of its name elsewhere", on("get", "secrets", "stage"), false},
		{"own attachment", attachments("n1"), true},
		{"attachment of another node", attachments("n2"), false},
		{"attachment that nobody knows", attachments("gone"), false},
		{"beyond the role", on("escalate", "roles", "x"), false},
		{"services", on("watch", "services", ""), true},
	} {
		c.attrs.User = kubelet("n1")
		got, reason, err := a.Authorize(t.Context(), c.attrs)
		if err != nil || (got == authorizer.DecisionAllow) != c.want {
			t.Errorf("%s: %v (%s) %v", c.name, got, reason, err)
		}
	}
	broken := on("get", "persistentvolumes", "broken")
	broken.User = kubelet("n1")
	if got, _, err := a.Authorize(t.Context(), broken); err == nil || got == authorizer.DecisionAllow {
		t.Errorf("a store that does not answer: %v, %v", got, err)
	}
	impostor := on("get", "secrets", "by-env")
	impostor.User = &user.DefaultInfo{Name: "system:node:n1"}
	if got, _, _ := a.Authorize(t.Context(), impostor); got != authorizer.DecisionNoOpinion {
		t.Errorf("a user outside of system:nodes: %v", got)
	}
}

// TestPasswordsOfSessions: a node gets the Secret that a BGPPeer of it names, and no other one.
func TestPasswordsOfSessions(t *testing.T) {
	a := newAuthorizer(t, func(context.Context, string) ([]*corev1.Pod, error) { return nil, nil })
	for _, c := range []struct {
		node, verb, namespace, name string
		want                        bool
	}{
		{"n1", "get", "kube-system", "bgp", true}, {"n2", "get", "kube-system", "bgp", false},
		{"n1", "get", "kube-system", "other", false}, {"n1", "get", "ns", "bgp", false},
		{"n1", "watch", "kube-system", "bgp", false}, {"n1", "list", "kube-system", "", false},
		{"n1", "update", "kube-system", "bgp", false},
	} {
		got, reason, err := a.Authorize(t.Context(), authorizer.AttributesRecord{User: kubelet(c.node), Verb: c.verb,
			Namespace: c.namespace, Resource: "secrets", Name: c.name, ResourceRequest: true})
		if err != nil || (got == authorizer.DecisionAllow) != c.want {
			t.Errorf("%+v: %v (%s) %v", c, got, reason, err)
		}
	}
}

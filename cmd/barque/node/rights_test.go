package node

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/barque/barque/apiserver/rbac"
)

// auditAll is a policy by which each request of the control plane is recorded.
const auditAll = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"

// TestControlPlaneHasItsRights: with something to do for each controller and the scheduler, the
// API refuses nothing to any of them: not for their roles, nor in admission. Then the server
// starts again in a cluster as an earlier version leaves it, without these roles, and with all
// rights in one of them: the controllers have their rights before they work, and that one has lost
// its.
func TestControlPlaneHasItsRights(t *testing.T) {
	space := newSpace(t)
	o := newOrder(t, 0, "")
	o.MinVoters = 1
	// It asks who may keep an owner until its dependents are gone.
	o.Admission.Enable = []string{"OwnerReferencesPermissionEnforcement"}
	o.AuditPolicy = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(o.AuditPolicy, []byte(auditAll), 0o600); err != nil {
		t.Fatal(err)
	}
	p := space.startProcess(t, o)
	until(t, patience, "the server is ready", p.ready)
	p.createAll("testdata/rights.yaml")
	client := p.client()
	for _, name := range []string{"n1", "n2"} {
		p.reportNode(client, name)
	}
	p.request(client)
	p.allocate(client)
	if err := client.CoreV1().Namespaces().Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.worked(client)
	until(t, patience, "a Deployment is deleted, and its ReplicaSets stay", func(ctx context.Context) error {
		orphan := metav1.DeletePropagationOrphan
		return wantGone(
			client.AppsV1().Deployments("w").Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &orphan}))
	})
	p.refusedNothing(25)

	for _, r := range rbac.DefaultClusterRoles() {
		if strings.HasPrefix(r.Name, "system:controller:") {
			if err := client.RbacV1().ClusterRoles().Delete(t.Context(), r.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	role, err := client.RbacV1().ClusterRoles().Get(t.Context(), "system:kube-controller-manager", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kept := len(role.Rules)
	role.Rules = append(role.Rules,
		rbacv1.PolicyRule{
			Verbs:     []string{"get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"},
			APIGroups: []string{"*"}, Resources: []string{"*"}})
	if _, err := client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	<-p.ended
	if err := os.Remove(auditFile(o.DataDir)); err != nil {
		t.Fatal(err)
	}
	p = space.startProcess(t, o)
	until(t, patience, "the server is ready again", p.ready)
	client = p.client()
	until(t, patience, "a pod of the ReplicaSet is replaced", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("w").List(ctx, metav1.ListOptions{LabelSelector: "app=rs"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Name == "adopted" {
				return errors.Join(client.CoreV1().Pods("w").Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0)),
					errors.New("it is there"))
			}
		}
		if len(pods.Items) != 2 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
	p.refusedNothing(5)
	role, err = client.RbacV1().ClusterRoles().Get(t.Context(), "system:kube-controller-manager", metav1.GetOptions{})
	if err != nil || len(role.Rules) != kept {
		t.Errorf("the role of earlier versions has the rules %v (%v), want %d", role.Rules, err, kept)
	}
	p.tokensCountForNobody(client)
	p.refusesStrangeDeeds()
}

// createAll creates the objects of a file.
func (p *process) createAll(file string) {
	p.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	config, err := p.config()
	if err != nil {
		p.t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := reader.Read()
		if err != nil {
			return // the end of the file
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
			p.t.Fatalf("%v in\n%s", err, doc)
		}
		if obj.Object == nil {
			continue
		}
		mapping, err := mapper.RESTMapping(obj.GroupVersionKind().GroupKind(), obj.GroupVersionKind().Version)
		if err != nil {
			p.t.Fatal(err)
		}
		var api dynamic.ResourceInterface = objects.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			api = objects.Resource(mapping.Resource).Namespace(obj.GetNamespace())
		}
		until(p.t, patience, "the creation of "+obj.GetKind()+" "+obj.GetName(), func(ctx context.Context) error {
			_, err := api.Create(ctx, obj, metav1.CreateOptions{}) // waits for service accounts of namespaces
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
}

// reportNode writes what a kubelet would of a node.
func (p *process) reportNode(client kubernetes.Interface, name string) {
	p.t.Helper()
	until(p.t, patience, "the status of node "+name, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("8Gi"),
			"pods": resource.MustParse("100")}
		node.Status.Allocatable = node.Status.Capacity
		now := metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}}
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// allocate gives the devices of a claim to a pod that is gone.
func (p *process) allocate(client kubernetes.Interface) {
	p.t.Helper()
	claims := client.ResourceV1().ResourceClaims("w")
	claim, err := claims.Get(p.t.Context(), "held", metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: "d.example.com", Pool: "p", Device: "x"}}}}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "gone", UID: "gone"}}
	if _, err := claims.UpdateStatus(p.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// request asks for a certificate, and approves that.
func (p *process) request(client kubernetes.Interface) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "ann"}}, key)
	if err != nil {
		p.t.Fatal(err)
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	r, err := requests.Create(p.t.Context(),
		&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "ann"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeAPIServerClientSignerName,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "test"}}
	if _, err := requests.UpdateApproval(p.t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// wantGone is an error unless the given one says that there is no such object.
func wantGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(errors.New("it is there"), err)
}

// worked waits until the controllers have done what there was to do.
func (p *process) worked(client kubernetes.Interface) {
	p.t.Helper()
	core := client.CoreV1()
	pods := func(ctx context.Context, app string, want int) error {
		list, err := core.Pods("w").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err == nil && len(list.Items) != want {
			err = fmt.Errorf("%d pods of %s, want %d", len(list.Items), app, want)
		}
		return err
	}
	for what, check := range map[string]func(ctx context.Context) error{
		"pods of each owner": func(ctx context.Context) error {
			return errors.Join(pods(ctx, "rs", 2), pods(ctx, "rc", 1), pods(ctx, "db", 1), pods(ctx, "ds", 2))
		},
		"the autoscaler scales to its minimum": func(ctx context.Context) error { return pods(ctx, "web", 3) },
		"pods are on nodes": func(ctx context.Context) error {
			list, err := core.Pods("w").List(ctx, metav1.ListOptions{LabelSelector: "app=rs"})
			if err == nil &&
				slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName == "" }) {
				err = errors.New("some are not")
			}
			return err
		},
		"the namespace is gone": func(ctx context.Context) error {
			_, err := core.Namespaces().Get(ctx, "gone", metav1.GetOptions{})
			return wantGone(err)
		},
		"the pod of a missing node is gone": func(ctx context.Context) error {
			_, err := core.Pods("w").Get(ctx, "lost", metav1.GetOptions{})
			return wantGone(err)
		},
		"the late Job is gone": func(ctx context.Context) error {
			_, err := client.BatchV1().Jobs("w").Get(ctx, "late", metav1.GetOptions{})
			return wantGone(err)
		},
		"a token is in its Secret": func(ctx context.Context) error {
			s, err := core.Secrets("w").Get(ctx, "robot", metav1.GetOptions{})
			if err == nil && len(s.Data["token"]) == 0 {
				err = errors.New("there is none")
			}
			return err
		},
		"an expired bootstrap token is gone": func(ctx context.Context) error {
			_, err := core.Secrets("kube-system").Get(ctx, "bootstrap-token-bbbbbb", metav1.GetOptions{})
			return wantGone(err)
		},
		"cluster-info is signed": func(ctx context.Context) error {
			m, err := core.ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
			if err == nil && m.Data["jws-kubeconfig-aaaaaa"] == "" {
				err = errors.New("it is not")
			}
			return err
		},
		"a role is aggregated": func(ctx context.Context) error {
			r, err := client.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{})
			if err == nil &&
				!slices.ContainsFunc(r.Rules,
					func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, "example.com") }) {
				err = errors.New("it is not")
			}
			return err
		},
		"a certificate is signed": func(ctx context.Context) error {
			r, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, "ann", metav1.GetOptions{})
			if err == nil && len(r.Status.Certificate) == 0 {
				err = fmt.Errorf("it is not: %v", r.Status.Conditions)
			}
			return err
		},
		"a volume is bound": func(ctx context.Context) error {
			c, err := core.PersistentVolumeClaims("w").Get(ctx, "static", metav1.GetOptions{})
			if err == nil && c.Status.Phase != corev1.ClaimBound {
				err = fmt.Errorf("it is %s", c.Status.Phase)
			}
			return err
		},
		"claims of pods are made": func(ctx context.Context) error {
			_, err := core.PersistentVolumeClaims("w").Get(ctx, "ephemeral-v", metav1.GetOptions{})
			if err == nil {
				var list any
				if list, err = client.ResourceV1().ResourceClaims("w").List(ctx, metav1.ListOptions{}); err == nil &&
					!strings.Contains(fmt.Sprint(list), "device-gpu-") {
					err = errors.New("no claim of a device")
				}
			}
			return err
		},
		"the devices of a gone pod are released": func(ctx context.Context) error {
			c, err := client.ResourceV1().ResourceClaims("w").Get(ctx, "held", metav1.GetOptions{})
			if err == nil && (c.Status.Allocation != nil || len(c.Status.ReservedFor) > 0) {
				err = fmt.Errorf("they are not: %+v", c.Status)
			}
			return err
		},
		"slices of a Service and of Endpoints": func(ctx context.Context) error {
			for _, name := range []string{"web", "mirrored"} {
				list, err := client.DiscoveryV1().EndpointSlices("w").List(ctx,
					metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + name})
				if err != nil || len(list.Items) == 0 {
					return fmt.Errorf("none of %s: %w", name, err)
				}
			}
			return nil
		},
		"used quota": func(ctx context.Context) error {
			q, err := core.ResourceQuotas("w").Get(ctx, "all", metav1.GetOptions{})
			if used := q.Status.Used["count/deployments.apps"]; err == nil && used.Value() != 1 {
				err = fmt.Errorf("%v", q.Status.Used)
			}
			return err
		},
		"objects are written again": func(ctx context.Context) error {
			list, err := client.StoragemigrationV1().StorageVersionMigrations().List(ctx, metav1.ListOptions{})
			for _, m := range list.Items {
				if !slices.ContainsFunc(m.Status.Conditions,
					func(
						c metav1.Condition,
					) bool {
						return c.Type == "Succeeded" && c.Status == metav1.ConditionTrue
					}) {
					err = errors.Join(err, fmt.Errorf("%s: %v", m.Name, m.Status.Conditions))
				}
			}
			return err
		},
		"a policy is checked": func(ctx context.Context) error {
			v, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, "p", metav1.GetOptions{})
			if err == nil && v.Status.TypeChecking == nil {
				err = errors.New("it is not")
			}
			return err
		},
		"the budget counts": func(ctx context.Context) error {
			b, err := client.PolicyV1().PodDisruptionBudgets("w").Get(ctx, "web", metav1.GetOptions{})
			if err == nil && b.Status.ExpectedPods == 0 {
				err = errors.New("it does not")
			}
			return err
		},
		"a CronJob makes a Job": func(ctx context.Context) error {
			c, err := client.BatchV1().CronJobs("w").Get(ctx, "cron", metav1.GetOptions{})
			if err == nil && c.Status.LastScheduleTime == nil {
				err = errors.New("not yet")
			}
			return err
		},
	} {
		until(p.t, patience, what, check)
	}
}

// refusedNothing checks the audit log, and that so many users of the control plane are in it at
// least.
func (p *process) refusedNothing(least int) {
	p.t.Helper()
	file, err := os.Open(auditFile(p.order.DataDir))
	if err != nil {
		p.t.Fatal(err)
	}
	defer file.Close()
	seen := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditv1.Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the last line is being written
		}
		if e.User.Username == "system:kube-controller-manager" && slices.Contains(e.User.Groups, "system:masters") {
			p.t.Fatalf("a member of system:masters: %s", lines.Text())
		}
		if !slices.Contains(rbac.ControlPlane(), e.User.Username) {
			continue
		}
		seen[e.User.Username]++
		if s := e.ResponseStatus; s != nil && s.Code == http.StatusForbidden &&
			!strings.Contains(s.Message, "being terminated") {
			p.t.Errorf("%s was refused: %s %s: %s", e.User.Username, e.Verb, e.RequestURI, s.Message)
		}
	}
	if err := lines.Err(); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range rbac.ControlPlane() {
		if seen[name] == 0 {
			p.t.Logf("%s made no request", name)
		}
	}
	if len(seen) < least {
		p.t.Errorf("%d users of the control plane made requests, want %d at least: %v", len(seen), least, seen)
	}
	if said := p.log.String(); strings.Contains(said, "lacks a right") || strings.Contains(said, "may lack rights") {
		p.t.Errorf("rights are missing:\n%s", said)
	}
}

// tokensCountForNobody: who makes the service account of a controller gets nothing by its tokens.
func (p *process) tokensCountForNobody(client kubernetes.Interface) {
	p.t.Helper()
	name := "clusterrole-aggregation-controller"
	accounts := client.CoreV1().ServiceAccounts("kube-system")
	if _, err := accounts.Create(p.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	config, err := p.config()
	if err != nil {
		p.t.Fatal(err)
	}
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
	config.BearerToken = p.tokenOf(client, name)
	thief, err := kubernetes.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := thief.RbacV1().ClusterRoles().Get(p.t.Context(), "view",
		metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		p.t.Errorf("a token of a controller's account: %v", err)
	}
}

// refusesStrangeDeeds: who has the identity of one controller, or of the scheduler, gets no
// further.
func (p *process) refusesStrangeDeeds() {
	p.t.Helper()
	ctx := p.t.Context()
	role := []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}
	admin := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}
	steal := func(account string) []byte {
		return fmt.Appendf(nil, `{"subjects":[{"kind":"ServiceAccount","namespace":"kube-system","name":%q}]}`, account)
	}
	for name, c := range map[string]struct {
		user string
		do   func(client kubernetes.Interface) error
	}{
		"the scheduler reads Secrets": {"system:kube-scheduler", func(client kubernetes.Interface) error {
			_, err := client.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
			return err
		}},
		"the scheduler creates pods": {"system:kube-scheduler", func(client kubernetes.Interface) error {
			_, err := client.CoreV1().Pods("w").Create(ctx, &corev1.Pod{}, metav1.CreateOptions{})
			return err
		}},
		"the controller of tokens reads Secrets": {"system:kube-controller-manager",
			func(client kubernetes.Interface) error {
				_, err := client.CoreV1().Secrets("w").Get(ctx, "robot", metav1.GetOptions{})
				return err
			}},
		"the controller of nodes creates a role": {"node-controller", func(client kubernetes.Interface) error {
			_, err := client.RbacV1().Roles("w").Create(ctx,
				&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: role}, metav1.CreateOptions{})
			return err
		}},
		"the controller of Deployments reads Secrets": {"deployment-controller",
			func(client kubernetes.Interface) error {
				_, err := client.CoreV1().Secrets("w").List(ctx, metav1.ListOptions{})
				return err
			}},
		"the controller of Jobs gets a token": {"job-controller", func(client kubernetes.Interface) error {
			_, err := client.CoreV1().ServiceAccounts("w").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{},
				metav1.CreateOptions{})
			return err
		}},
		"the publisher of the CA writes another ConfigMap": {"root-ca-cert-publisher",
			func(client kubernetes.Interface) error {
				_, err := client.CoreV1().ConfigMaps("kube-public").Update(ctx,
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}}, metav1.UpdateOptions{})
				return err
			}},
		"who aggregates roles binds one": {"clusterrole-aggregation-controller",
			func(client kubernetes.Interface) error {
				_, err := client.RbacV1().ClusterRoleBindings().Create(ctx,
					&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: admin},
					metav1.CreateOptions{})
				return err
			}},
		"who aggregates roles changes the role of a namespace": {"clusterrole-aggregation-controller",
			func(client kubernetes.Interface) error {
				_, err := client.RbacV1().Roles("w").Create(ctx,
					&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: role}, metav1.CreateOptions{})
				return err
			}},
		"the collector of garbage becomes an administrator": {"generic-garbage-collector",
			func(client kubernetes.Interface) error {
				_, err := client.RbacV1().ClusterRoleBindings().Patch(ctx, "cluster-admin", types.MergePatchType,
					steal("generic-garbage-collector"), metav1.PatchOptions{})
				return err
			}},
		"the migration of objects becomes an administrator": {"storage-version-migrator-controller",
			func(client kubernetes.Interface) error {
				_, err := client.RbacV1().ClusterRoleBindings().Patch(ctx, "cluster-admin", types.MergePatchType,
					steal("storage-version-migrator-controller"), metav1.PatchOptions{})
				return err
			}},
	} {
		config, err := p.config()
		if err != nil {
			p.t.Fatal(err)
		}
		config.Impersonate.UserName = c.user
		if !strings.HasPrefix(c.user, "system:") {
			config.Impersonate.UserName, config.Impersonate.Groups = serviceaccount.MakeUsername("kube-system", c.user),
				serviceaccount.MakeGroupNames("kube-system")
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			p.t.Fatal(err)
		}
		if err := c.do(client); !apierrors.IsForbidden(err) {
			p.t.Errorf("%s: %v; want it forbidden", name, err)
		}
	}
}

func (p *process) tokenOf(client kubernetes.Interface, account string) string {
	p.t.Helper()
	answer, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(p.t.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.Status.Token
}

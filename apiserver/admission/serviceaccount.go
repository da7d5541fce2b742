package admission

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"
)

const (
	tokenMountPath  = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolume     = "kube-api-access-"
	tokenLifetime   = 3607 // seconds; the odd 7 marks tokens that were mounted by default
	rootCAConfigMap = "kube-root-ca.crt"
	defaultAccount  = "default"
)

// ServiceAccounts gives every pod a service account and, unless the pod or the account opts out, a
// projected volume with a token, the cluster's CA and the namespace in each container.
type ServiceAccounts struct {
	*admission.Handler
	accounts listers.ServiceAccountLister
	client   kubernetes.Interface
}

var (
	_ admission.MutationInterface   = (*ServiceAccounts)(nil)
	_ admission.ValidationInterface = (*ServiceAccounts)(nil)
)

// NewServiceAccounts returns the step.
func NewServiceAccounts(accounts listers.ServiceAccountLister, client kubernetes.Interface) *ServiceAccounts {
	return &ServiceAccounts{admission.NewHandler(admission.Create), accounts, client}
}

// Admit implements admission.MutationInterface.
func (s *ServiceAccounts) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := PodOf(a)
	if pod == nil || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
	}
	//nolint:staticcheck // the deprecated alias must show the same name for old clients
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	account, err := s.account(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	if pod.Spec.ServiceAccountName == defaultAccount && apierrors.IsNotFound(err) {
		account, err = s.awaitDefault(ctx, a.GetNamespace())
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if wantsToken(account, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, account.ImagePullSecrets...)
	}
	return nil
}

// Validate implements admission.ValidationInterface: later steps may have changed the account.
func (s *ServiceAccounts) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := PodOf(a)
	if pod == nil {
		return nil
	}
	if isMirror(pod) {
		return admissionErr(a, mirrorUses(pod))
	}
	_, err := s.account(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	return admissionErr(a, err)
}

func admissionErr(a admission.Attributes, err error) error {
	if err == nil {
		return nil
	}
	return admission.NewForbidden(a, err)
}

// account returns the service account. The lister may be behind the controller that has just made
// the account, so an account that it lacks is read from the API.
func (s *ServiceAccounts) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if sa, err := s.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return sa, nil
	}
	sa, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("error looking up service account %s/%s: %w", namespace, name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("looking up service account %s/%s: %w", namespace, name, err)
	}
	return sa, nil
}

// A namespace gets its default account from a controller, a moment after it was made. Manifests
// that bring a namespace and its pods at once must not fail for that moment.
const (
	defaultPatience = 2 * time.Second
	defaultLook     = 10 * time.Millisecond
)

// awaitDefault waits for the default account of a namespace, for a while.
func (s *ServiceAccounts) awaitDefault(ctx context.Context, namespace string) (*corev1.ServiceAccount, error) {
	patience := time.NewTimer(defaultPatience)
	defer patience.Stop()
	look := time.NewTicker(defaultLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if sa, err := s.accounts.ServiceAccounts(namespace).Get(defaultAccount); err == nil {
				return sa, nil
			}
		case <-patience.C:
			return s.account(ctx, namespace, defaultAccount)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func wantsToken(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return ptr.Deref(account.AutomountServiceAccountToken, true)
}

// mountToken adds the volume if a container has nothing mounted at its place.
func mountToken(pod *corev1.Pod) {
	name := ""
	for i := range pod.Spec.Volumes {
		if n := pod.Spec.Volumes[i].Name; len(n) > len(tokenVolume) && n[:len(tokenVolume)] == tokenVolume {
			name = n
			break
		}
	}
	exists := name != ""
	if !exists {
		name = tokenVolume + rand.String(5)
	}
	mount := corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenMountPath}
	used := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !mounted(list[i].VolumeMounts) {
				list[i].VolumeMounts = append(list[i].VolumeMounts, mount)
				used = true
			}
		}
	}
	if used && !exists {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: tokenSource()})
	}
}

func mounted(mounts []corev1.VolumeMount) bool {
	for i := range mounts {
		if mounts[i].MountPath == tokenMountPath {
			return true
		}
	}
	return false
}

func tokenSource() corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](tokenLifetime),
				Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path:     "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}}
}

// mirrorUses refuses objects that a pod of a static manifest must not use, for every user.
func mirrorUses(pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return fmt.Errorf("a mirror pod may not reference service accounts")
	}
	secrets := len(pod.Spec.ImagePullSecrets) > 0
	eachEnv(pod, func(from []corev1.EnvFromSource, vars []corev1.EnvVar) {
		secrets = secrets || envRefersTo(from, vars) == "secrets"
	})
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		secrets = secrets || v.Secret != nil
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			secrets = secrets || source.Secret != nil
			if source.ServiceAccountToken != nil {
				return fmt.Errorf("a mirror pod may not use service account tokens")
			}
		}
	}
	if secrets {
		return fmt.Errorf("a mirror pod may not reference secrets")
	}
	return nil
}

// PodOf returns the pod that is being created or changed itself, nil for other requests.
func PodOf(a admission.Attributes) *corev1.Pod {
	if a.GetResource().GroupResource() != corev1.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	pod, _ := a.GetObject().(*corev1.Pod)
	return pod
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

package registry

import (
	"fmt"
	"io"
	"net/netip"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/compatibility"
	"k8s.io/utils/clock"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/admission/optional"
	"github.com/barque/barque/apiserver/admission/quota"
)

// plugin is one step of the chain.
type plugin struct {
	name string
	// on makes it run unless it is disabled.
	on bool
	// needs are the resources that it reads.
	needs []schema.GroupVersionResource
	// create makes it; nil for plugins of Kubernetes that Barque does not have.
	create func(p *Parts, config io.Reader) (admission.Interface, error)
}

// Parts are the dependencies of plugins.
type Parts struct {
	// ServerID is the name of this server, in metrics.
	ServerID string
	Version  compatibility.EffectiveVersion

	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Mapper     meta.RESTMapper
	Informers  informers.SharedInformerFactory
	Authorizer authorizer.Authorizer
	// Stopped is closed when the server has answered its last request.
	Stopped <-chan struct{}
	// GroupVersions are the group versions of the server's own kinds.
	GroupVersions []schema.GroupVersion

	// Services resolves the addresses of webhooks that are Services.
	Services webhook.ServiceResolver
	// WebhookUsers returns the credentials for calls of webhooks.
	WebhookUsers webhook.AuthenticationInfoResolverWrapper

	// NodeLeases is set if the leases of nodes are made from gossip. Their namespace can then never
	// be emptied and must not be deleted.
	NodeLeases bool
	// Member reports whether a node is a member of the cluster, as far as this server knows; nil
	// where the leases of nodes are stored like all others.
	Member func(node string) bool
	// NodeAddress returns the reason why a node may not have an address; nil where all may.
	NodeAddress func(node string, kind corev1.NodeAddressType, addr netip.Addr) error
	// NotReadySeconds and UnreachableSeconds are the default tolerations of pods.
	NotReadySeconds, UnreachableSeconds int64
}

func (p *Parts) namespaces() optional.Namespaces {
	return optional.Namespaces{Lister: p.Informers.Core().V1().Namespaces().Lister(), Client: p.Client}
}

// step makes a plugin that has no configuration.
func step(create func(p *Parts) admission.Interface) func(*Parts, io.Reader) (admission.Interface, error) {
	return func(p *Parts, _ io.Reader) (admission.Interface, error) { return create(p), nil }
}

// library makes a plugin of k8s.io/apiserver.
func library[P admission.Interface](
	create func(io.Reader) (P, error),
) func(*Parts, io.Reader) (admission.Interface, error) {
	return func(_ *Parts, config io.Reader) (admission.Interface, error) { return create(config) }
}

// configurations are the resources that configure webhooks or policies, and the namespaces that
// they select by.
func configurations(names ...string) []schema.GroupVersionResource {
	resources := []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("namespaces")}
	for _, name := range names {
		resources = append(resources, admissionv1.SchemeGroupVersion.WithResource(name))
	}
	return resources
}

// coreResources are resources of the core group.
func coreResources(names ...string) []schema.GroupVersionResource {
	var resources []schema.GroupVersionResource
	for _, name := range names {
		resources = append(resources, corev1.SchemeGroupVersion.WithResource(name))
	}
	return resources
}

var storageClasses = []schema.GroupVersionResource{storagev1.SchemeGroupVersion.WithResource("storageclasses")}

// plugins are all admission plugins of Kubernetes, in the order in which they run.
func plugins() []plugin {
	return []plugin{
		{name: "AlwaysAdmit", create: step(func(*Parts) admission.Interface { return optional.AlwaysAdmit{} })},
		{name: "NamespaceAutoProvision", create: step(func(p *Parts) admission.Interface {
			return optional.NewNamespaceProvision(p.namespaces())
		})},
		{name: lifecycle.PluginName, on: true, create: newLifecycle},
		{name: "NamespaceExists",
			create: step(func(p *Parts) admission.Interface { return optional.NewNamespaceExists(p.namespaces()) })},
		{name: "LimitPodHardAntiAffinityTopology",
			create: step(func(*Parts) admission.Interface { return optional.NewHardAntiAffinity() })},
		{name: "LimitRanger", on: true, needs: coreResources("limitranges"),
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewLimitRanger(p.Informers.Core().V1().LimitRanges().Lister(), p.Client)
			})},
		{name: "ServiceAccount", on: true, create: step(func(p *Parts) admission.Interface {
			return barqueadmission.NewServiceAccounts(p.Informers.Core().V1().ServiceAccounts().Lister(), p.Client)
		})},
		// Upstream leaves it off. Every installer turns it on, and Barque's nodes rely on it.
		{name: "NodeRestriction", on: true, create: step(func(p *Parts) admission.Interface {
			return barqueadmission.NewNodeRestriction(p.Informers.Core().V1(), p.Client, p.Authorizer, p.Member,
				p.NodeAddress)
		})},
		{name: "TaintNodesByCondition", on: true,
			create: step(func(*Parts) admission.Interface { return barqueadmission.NewNewNodes() })},
		{name: "AlwaysPullImages",
			create: step(func(*Parts) admission.Interface { return optional.NewAlwaysPullImages() })},
		{name: "ImagePolicyWebhook", create: func(_ *Parts, config io.Reader) (admission.Interface, error) {
			return optional.NewImagePolicy(config)
		}},
		{
			name: "PodSecurity", on: true, needs: configurations(),
			create: func(p *Parts, config io.Reader) (admission.Interface, error) {
				core := p.Informers.Core().V1()
				return barqueadmission.NewPodSecurity(config, core.Namespaces().Lister(), core.Pods().Lister(),
					p.Client)
			},
		},
		{name: "PodNodeSelector", create: func(p *Parts, config io.Reader) (admission.Interface, error) {
			return optional.NewNodeSelectors(config, p.namespaces())
		}},
		{
			name: "Priority", on: true,
			needs: []schema.GroupVersionResource{schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")},
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewPriorities(p.Informers.Scheduling().V1().PriorityClasses().Lister(), p.Client)
			}),
		},
		{name: "DefaultTolerationSeconds", on: true, create: step(func(p *Parts) admission.Interface {
			return barqueadmission.NewTolerations(p.NotReadySeconds, p.UnreachableSeconds)
		})},
		{name: "PodTolerationRestriction", create: func(p *Parts, config io.Reader) (admission.Interface, error) {
			return optional.NewTolerationLimits(config, p.namespaces())
		}},
		{name: "EventRateLimit", create: func(_ *Parts, config io.Reader) (admission.Interface, error) {
			return optional.NewEventRate(config, clock.RealClock{})
		}},
		{name: "ExtendedResourceToleration",
			create: step(func(*Parts) admission.Interface { return optional.NewExtendedResources() })},
		{
			name: "DefaultStorageClass", on: true, needs: storageClasses,
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewStorageClasses(p.Informers.Storage().V1().StorageClasses().Lister())
			}),
		},
		// Controllers of package protection take the finalizers off.
		{name: "StorageObjectInUseProtection", on: true,
			create: step(func(*Parts) admission.Interface { return barqueadmission.NewProtection() })},
		// Upstream's does nothing unless a beta feature that is off by default, GenericWorkload, is
		// enabled.
		{name: "PodGroupProtection"},
		{name: "OwnerReferencesPermissionEnforcement", create: step(func(p *Parts) admission.Interface {
			return optional.NewOwners(p.Authorizer, p.Mapper)
		})},
		{
			name: "PersistentVolumeClaimResize", on: true, needs: storageClasses,
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewClaimResize(p.Informers.Storage().V1().StorageClasses().Lister())
			}),
		},
		{
			name: "RuntimeClass", on: true,
			needs: []schema.GroupVersionResource{nodev1.SchemeGroupVersion.WithResource("runtimeclasses")},
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewRuntimeClasses(p.Informers.Node().V1().RuntimeClasses().Lister(), p.Client)
			}),
		},
		{name: "CertificateApproval", on: true, create: step(func(p *Parts) admission.Interface {
			return barqueadmission.NewCertificateApproval(p.Authorizer)
		})},
		{name: "CertificateSigning", on: true, create: step(func(p *Parts) admission.Interface {
			return barqueadmission.NewCertificateSigning(p.Authorizer)
		})},
		{name: "ClusterTrustBundleAttest", on: true, create: step(func(p *Parts) admission.Interface {
			return barqueadmission.NewTrustBundleAttest(p.Authorizer)
		})},
		{name: "CertificateSubjectRestriction", on: true, create: step(func(*Parts) admission.Interface {
			return barqueadmission.NewCertificateSubjects()
		})},
		{
			name: "DefaultIngressClass", on: true,
			needs: []schema.GroupVersionResource{networkingv1.SchemeGroupVersion.WithResource("ingressclasses")},
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewIngressClasses(p.Informers.Networking().V1().IngressClasses().Lister())
			}),
		},
		{name: "DenyServiceExternalIPs",
			create: step(func(*Parts) admission.Interface { return optional.NewExternalIPs() })},
		{name: "PodTopologyLabels", on: true, needs: coreResources("nodes"),
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewPodTopology(p.Informers.Core().V1().Nodes().Lister())
			})},
		{name: "NodeDeclaredFeatureValidator", on: true, needs: coreResources("nodes"),
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewNodeFeatures(p.Informers.Core().V1().Nodes().Lister(),
					p.Version.BinaryVersion())
			})},
		{name: "PodResizeValidator", on: true, needs: coreResources("nodes"),
			create: step(func(p *Parts) admission.Interface {
				return barqueadmission.NewPodResize(p.Informers.Core().V1().Nodes().Lister())
			})},
		{
			name: mutatingpolicy.PluginName, on: true,
			needs:  configurations("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
			create: library(mutatingpolicy.NewPlugin),
		},
		{
			name: mutatingwebhook.PluginName, on: true, needs: configurations("mutatingwebhookconfigurations"),
			create: library(mutatingwebhook.NewMutatingWebhook),
		},
		{
			name: validatingpolicy.PluginName, on: true,
			needs:  configurations("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
			create: library(validatingpolicy.NewPlugin),
		},
		{
			name: validatingwebhook.PluginName, on: true, needs: configurations("validatingwebhookconfigurations"),
			create: library(validatingwebhook.NewValidatingAdmissionWebhook),
		},
		{
			name: "ResourceQuota", on: true, needs: coreResources("resourcequotas"),
			create: func(p *Parts, config io.Reader) (admission.Interface, error) {
				var devices *quota.Devices
				if slices.Contains(p.GroupVersions, resourcev1.SchemeGroupVersion) {
					var err error
					if devices, err = quota.FollowDevices(p.Informers); err != nil {
						return nil, err
					}
				}
				return quota.New(config, p.Informers, devices, p.Client)
			},
		},
		{name: "AlwaysDeny", create: step(func(*Parts) admission.Interface { return optional.AlwaysDeny{} })},
	}
}

func newLifecycle(p *Parts, _ io.Reader) (admission.Interface, error) {
	immortal := sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic)
	if p.NodeLeases {
		immortal.Insert(corev1.NamespaceNodeLease)
	}
	l, err := lifecycle.NewLifecycle(immortal)
	if err != nil {
		return nil, fmt.Errorf("namespaces that cannot be deleted: %w", err)
	}
	return l, nil
}

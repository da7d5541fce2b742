// Package controllers is the list of Barque's controllers, in the order in which a new leader
// starts them. Each is a package of its own, which knows none of the others; package runtime runs
// them while this server leads.
package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/controllers/apiendpoints"
	"github.com/barque/barque/controllers/certificates"
	"github.com/barque/barque/controllers/clusterrole"
	"github.com/barque/barque/controllers/cronjob"
	"github.com/barque/barque/controllers/daemonset"
	"github.com/barque/barque/controllers/deployment"
	"github.com/barque/barque/controllers/disruption"
	"github.com/barque/barque/controllers/endpoints"
	"github.com/barque/barque/controllers/endpointslice"
	"github.com/barque/barque/controllers/endpointslicemirroring"
	"github.com/barque/barque/controllers/flowschema"
	"github.com/barque/barque/controllers/garbagecollector"
	"github.com/barque/barque/controllers/hpa"
	"github.com/barque/barque/controllers/job"
	"github.com/barque/barque/controllers/namespace"
	"github.com/barque/barque/controllers/nodeipam"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/controllers/podgc"
	"github.com/barque/barque/controllers/policystatus"
	"github.com/barque/barque/controllers/protection"
	"github.com/barque/barque/controllers/replicaset"
	"github.com/barque/barque/controllers/resourcequota"
	"github.com/barque/barque/controllers/rootca"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/controllers/serviceaccount"
	"github.com/barque/barque/controllers/servicecidr"
	"github.com/barque/barque/controllers/statefulset"
	"github.com/barque/barque/controllers/tokencleaner"
	"github.com/barque/barque/controllers/ttlafterfinished"
)

// Config is what the controllers need from outside.
type Config struct {
	// Informers live as long as the process. New asks for the ones that are needed; start them
	// after it.
	Informers informers.SharedInformerFactory
	// MetadataFor makes the metadata client of a term: every request of it carries runtime.TermFrom(lead), and ends with lead.
	MetadataFor func(lead context.Context) (metadata.Interface, error)
	// ConfigFor makes the configuration of other clients of a term, for which the same holds.
	ConfigFor func(lead context.Context) *rest.Config
	Logger    *slog.Logger
	// Serves tells which resources the API has; nil means all. No informer is made of another one: it
	// would never be warm.
	Serves func(schema.GroupVersionResource) bool

	// CA is what pods verify the API with, and Signer what has its key.
	CA     rootca.CA
	Signer certificates.Signer
	// ClusterCIDRs are cut into the nodes' blocks of pod addresses.
	ClusterCIDRs []netip.Prefix
	Liveness     nodelifecycle.Liveness
	NodeSettings nodelifecycle.Settings
	// MemberLabel is on the Leases of nodes that are made from gossip: see nodelifecycle.Config.
	MemberLabel string
	Servers     apiendpoints.Servers
	// ServerReady asks an API server whether it is ready: see apiendpoints.Config.
	ServerReady func(ctx context.Context, server netip.AddrPort) error
	Roles       noderole.Servers
	// QuotaEvaluators and QuotaIgnored are what requests are charged by: see resourcequota.Config.
	QuotaEvaluators func(quotav1.ListerForResourceFunc) []quotav1.Evaluator
	QuotaIgnored    map[schema.GroupResource]struct{}
}

// controller is what every one of them is.
type controller interface {
	Run(ctx context.Context, client kubernetes.Interface) error
}

var signingRequests = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")

// kinds are what some controllers are for, by their names: one whose kind is not served is left out.
var kinds = map[string]schema.GroupVersionResource{
	"job":                   batchv1.SchemeGroupVersion.WithResource("jobs"),
	"cronjob":               batchv1.SchemeGroupVersion.WithResource("cronjobs"),
	"ttlafterfinished":      batchv1.SchemeGroupVersion.WithResource("jobs"),
	"daemonset":             appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	"statefulset":           appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	"hpa":                   autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
	"flowschema":            flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas"),
	"servicecidr":           networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
	"replicationcontroller": corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
	"csrapproving":          signingRequests,
	"csrsigning":            signingRequests,
	"csrcleaner":            signingRequests,
	"trustbundle":           certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles"),

	"podcertificaterequestcleaner": certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests"),
}

// New makes all controllers, for runtime.Config.Routines.
func New(cfg Config) ([]runtime.Routine, error) {
	inf, log := cfg.Informers, cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	certs := certificates.Config{Informers: inf, Logger: log, CA: cfg.CA, Signer: cfg.Signer}
	// What pods cannot start without comes first.
	list := []struct {
		name string
		make func() (controller, error)
	}{
		{"serviceaccount", func() (controller, error) {
			return serviceaccount.New(serviceaccount.Config{Informers: inf, Logger: log})
		}},
		{"rootca", func() (controller, error) {
			return rootca.New(rootca.Config{Informers: inf, Logger: log, CA: cfg.CA})
		}},
		{"nodeipam", func() (controller, error) {
			return nodeipam.New(nodeipam.Config{Informers: inf, Logger: log, ClusterCIDRs: cfg.ClusterCIDRs})
		}},
		{"apiendpoints", func() (controller, error) {
			return apiendpoints.New(apiendpoints.Config{Informers: inf, Logger: log, Servers: cfg.Servers, Ready: cfg.ServerReady})
		}},
		{"deployment", func() (controller, error) {
			return deployment.New(deployment.Config{Informers: inf, Logger: log})
		}},
		{"replicaset", func() (controller, error) {
			return replicaset.New(replicaset.Config{Informers: inf, Logger: log})
		}},
		{"replicationcontroller", func() (controller, error) {
			return replicaset.NewReplication(replicaset.Config{Informers: inf, Logger: log})
		}},
		{"job", func() (controller, error) {
			return job.New(job.Config{Informers: inf, Logger: log})
		}},
		{"cronjob", func() (controller, error) {
			return cronjob.New(cronjob.Config{Informers: inf, Logger: log})
		}},
		{"ttlafterfinished", func() (controller, error) {
			return ttlafterfinished.New(ttlafterfinished.Config{Informers: inf, Logger: log})
		}},
		{"daemonset", func() (controller, error) {
			return daemonset.New(daemonset.Config{Informers: inf, Logger: log})
		}},
		{"statefulset", func() (controller, error) {
			return statefulset.New(statefulset.Config{Informers: inf, Logger: log})
		}},
		{"disruption", func() (controller, error) {
			return disruption.New(disruption.Config{Informers: inf, Logger: log, Serves: cfg.Serves})
		}},
		{"hpa", func() (controller, error) {
			return hpa.New(hpa.Config{Informers: inf, Logger: log, ConfigFor: cfg.ConfigFor})
		}},
		{"endpointslice", func() (controller, error) {
			return endpointslice.New(endpointslice.Config{Informers: inf, Logger: log})
		}},
		{"servicecidr", func() (controller, error) {
			return servicecidr.New(servicecidr.Config{Informers: inf, Logger: log})
		}},
		{"flowschema", func() (controller, error) {
			return flowschema.New(flowschema.Config{Informers: inf, Logger: log})
		}},
		{"endpoints", func() (controller, error) {
			return endpoints.New(endpoints.Config{Informers: inf, Logger: log})
		}},
		{"endpointslicemirroring", func() (controller, error) {
			return endpointslicemirroring.New(endpointslicemirroring.Config{Informers: inf, Logger: log})
		}},
		{"nodelifecycle", func() (controller, error) {
			return nodelifecycle.New(nodelifecycle.Config{Informers: inf, Logger: log, Liveness: cfg.Liveness, Settings: cfg.NodeSettings, MemberLabel: cfg.MemberLabel})
		}},
		{"noderole", func() (controller, error) {
			return noderole.New(noderole.Config{Informers: inf, Logger: log, Servers: cfg.Roles})
		}},
		{"podgc", func() (controller, error) {
			return podgc.New(podgc.Config{Informers: inf, Logger: log})
		}},
		{"namespace", func() (controller, error) {
			return namespace.New(namespace.Config{Informers: inf, Logger: log, MetadataFor: cfg.MetadataFor})
		}},
		{"resourcequota", func() (controller, error) {
			return resourcequota.New(resourcequota.Config{Informers: inf, Logger: log, MetadataFor: cfg.MetadataFor,
				Evaluators: cfg.QuotaEvaluators, Ignored: cfg.QuotaIgnored})
		}},
		{"pvcprotection", func() (controller, error) {
			return protection.NewClaims(protection.Config{Informers: inf, Logger: log})
		}},
		{"pvprotection", func() (controller, error) {
			return protection.NewVolumes(protection.Config{Informers: inf, Logger: log})
		}},
		{"vacprotection", func() (controller, error) {
			return protection.NewClasses(protection.Config{Informers: inf, Logger: log})
		}},
		{"garbagecollector", func() (controller, error) {
			return garbagecollector.New(garbagecollector.Config{Logger: log, MetadataFor: cfg.MetadataFor})
		}},
		{"clusterrole-aggregation", func() (controller, error) {
			return clusterrole.New(clusterrole.Config{Informers: inf, Logger: log})
		}},
		{"validatingadmissionpolicy-status", func() (controller, error) {
			return policystatus.New(policystatus.Config{Informers: inf, Logger: log})
		}},
		{"tokencleaner", func() (controller, error) {
			return tokencleaner.New(tokencleaner.Config{Informers: inf, Logger: log})
		}},
		{"csrapproving", func() (controller, error) { return certificates.NewApproving(certs) }},
		{"csrsigning", func() (controller, error) { return certificates.NewSigning(certs) }},
		{"csrcleaner", func() (controller, error) { return certificates.NewCleaner(certs) }},
		{"trustbundle", func() (controller, error) { return certificates.NewPublisher(certs) }},
		{"podcertificaterequestcleaner", func() (controller, error) { return certificates.NewPodRequestCleaner(certs) }},
	}
	routines := make([]runtime.Routine, 0, len(list))
	for _, l := range list {
		if kind, named := kinds[l.name]; named && cfg.Serves != nil && !cfg.Serves(kind) {
			log.Info("a controller is left out: its kind is not served", "controller", l.name)
			continue
		}
		c, err := l.make()
		if err != nil {
			return nil, fmt.Errorf("controller %s: %w", l.name, err)
		}
		routines = append(routines, runtime.Routine{Name: l.name, Run: c.Run})
	}
	return routines, nil
}

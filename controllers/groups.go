package controllers

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	migrationv1 "k8s.io/api/storagemigration/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"

	"github.com/barque/barque/controllers/apiendpoints"
	"github.com/barque/barque/controllers/attachdetach"
	"github.com/barque/barque/controllers/bootstrapsigner"
	"github.com/barque/barque/controllers/certificates"
	"github.com/barque/barque/controllers/clusterrole"
	"github.com/barque/barque/controllers/cronjob"
	"github.com/barque/barque/controllers/daemonset"
	"github.com/barque/barque/controllers/deployment"
	"github.com/barque/barque/controllers/devicetainteviction"
	"github.com/barque/barque/controllers/disruption"
	"github.com/barque/barque/controllers/endpoints"
	"github.com/barque/barque/controllers/endpointslice"
	"github.com/barque/barque/controllers/endpointslicemirroring"
	"github.com/barque/barque/controllers/ephemeralvolume"
	"github.com/barque/barque/controllers/garbagecollector"
	"github.com/barque/barque/controllers/helmcharts"
	"github.com/barque/barque/controllers/hpa"
	"github.com/barque/barque/controllers/job"
	"github.com/barque/barque/controllers/localprovisioner"
	"github.com/barque/barque/controllers/manifests"
	"github.com/barque/barque/controllers/namespace"
	"github.com/barque/barque/controllers/nodeipam"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/controllers/persistentvolume"
	"github.com/barque/barque/controllers/podgc"
	"github.com/barque/barque/controllers/policystatus"
	"github.com/barque/barque/controllers/protection"
	"github.com/barque/barque/controllers/replicaset"
	"github.com/barque/barque/controllers/resourceclaim"
	"github.com/barque/barque/controllers/resourcequota"
	"github.com/barque/barque/controllers/rootca"
	"github.com/barque/barque/controllers/serviceaccount"
	"github.com/barque/barque/controllers/serviceaccounttoken"
	"github.com/barque/barque/controllers/servicecidr"
	"github.com/barque/barque/controllers/servicelb"
	"github.com/barque/barque/controllers/statefulset"
	"github.com/barque/barque/controllers/storageversionmigration"
	"github.com/barque/barque/controllers/tokencleaner"
	"github.com/barque/barque/controllers/ttlafterfinished"
	"github.com/barque/barque/controllers/volumeexpand"
)

// basis is required by the start of every pod.
var basis = group{"basis", []entry{
	{
		name: "serviceaccount", account: "service-account-controller", upstream: []string{"serviceaccount-controller"},
		make: func(c Config, _ int) (controller, error) {
			return serviceaccount.New(serviceaccount.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "serviceaccounttoken", upstream: []string{"serviceaccount-token-controller", "serviceaccount-token"},
		syncs: "concurrent-serviceaccount-token-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return serviceaccounttoken.New(
				serviceaccounttoken.Config{Informers: c.Informers, Logger: c.Logger, CA: c.CA, Workers: workers})
		},
	},
	{
		name: "rootca", account: "root-ca-cert-publisher",
		upstream: []string{"root-ca-certificate-publisher-controller", "root-ca-cert-publisher"},
		make: func(c Config, _ int) (controller, error) {
			return rootca.New(rootca.Config{Informers: c.Informers, Logger: c.Logger, CA: c.CA})
		},
	},
	{
		name: "nodeipam", account: "node-controller", upstream: []string{"node-ipam-controller"},
		make: func(c Config, _ int) (controller, error) {
			return nodeipam.New(
				nodeipam.Config{Informers: c.Informers, Logger: c.Logger, ClusterCIDRs: c.ClusterCIDRs,
					NodeBits4: c.Settings.NodeMaskBits, NodeBits6: c.Settings.NodeMaskBits6})
		},
	},
	{
		name: "apiendpoints", account: "barque-api-endpoints",
		make: func(c Config, _ int) (controller, error) {
			return apiendpoints.New(
				apiendpoints.Config{Informers: c.Informers, Logger: c.Logger, Servers: c.Servers, Ready: c.ServerReady})
		},
	},
}}

// workloads make and end pods.
var workloads = group{"workloads", []entry{
	{
		name: "deployment", account: "deployment-controller", upstream: []string{"deployment-controller"},
		syncs: "concurrent-deployment-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return deployment.New(deployment.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "replicaset", account: "replicaset-controller", upstream: []string{"replicaset-controller"},
		syncs: "concurrent-replicaset-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return replicaset.New(replicaset.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "replicationcontroller", account: "replication-controller",
		upstream: []string{"replicationcontroller-controller"}, syncs: "concurrent-rc-syncs", workers: 5,
		kind: corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
		make: func(c Config, workers int) (controller, error) {
			return replicaset.NewReplication(
				replicaset.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "job", account: "job-controller", upstream: []string{"job-controller"}, syncs: "concurrent-job-syncs",
		workers: 5,
		kind:    batchv1.SchemeGroupVersion.WithResource("jobs"),
		make: func(c Config, workers int) (controller, error) {
			return job.New(job.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "cronjob", account: "cronjob-controller", upstream: []string{"cronjob-controller"},
		syncs: "concurrent-cron-job-syncs", workers: 5,
		kind: batchv1.SchemeGroupVersion.WithResource("cronjobs"),
		make: func(c Config, workers int) (controller, error) {
			return cronjob.New(cronjob.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "ttlafterfinished", account: "ttl-after-finished-controller",
		upstream: []string{"ttl-after-finished-controller", "ttl-after-finished"},
		kind:     batchv1.SchemeGroupVersion.WithResource("jobs"),
		make: func(c Config, _ int) (controller, error) {
			return ttlafterfinished.New(ttlafterfinished.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "daemonset", account: "daemon-set-controller", upstream: []string{"daemonset-controller"},
		syncs: "concurrent-daemonset-syncs", workers: 2,
		kind: appsv1.SchemeGroupVersion.WithResource("daemonsets"),
		make: func(c Config, workers int) (controller, error) {
			return daemonset.New(daemonset.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "statefulset", account: "statefulset-controller", upstream: []string{"statefulset-controller"},
		syncs: "concurrent-statefulset-syncs", workers: 5,
		kind: appsv1.SchemeGroupVersion.WithResource("statefulsets"),
		make: func(c Config, workers int) (controller, error) {
			return statefulset.New(statefulset.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "disruption", account: "disruption-controller", upstream: []string{"disruption-controller"},
		make: func(c Config, _ int) (controller, error) {
			return disruption.New(disruption.Config{Informers: c.Informers, Logger: c.Logger, Serves: c.Serves})
		},
	},
	{
		name: "hpa", account: "horizontal-pod-autoscaler",
		upstream: []string{"horizontal-pod-autoscaler-controller", "horizontalpodautoscaling"},
		syncs:    "concurrent-horizontal-pod-autoscaler-syncs", workers: 5,
		kind: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
		make: func(c Config, workers int) (controller, error) {
			return hpa.New(
				hpa.Config{Informers: c.Informers, Logger: c.Logger, ConfigFor: c.clients.Config,
					Settings: c.Settings.Autoscaling, Workers: workers})
		},
	},
}}

// network leads clients to pods.
var network = group{"network", []entry{
	{
		name: "endpointslice", account: "endpointslice-controller", upstream: []string{"endpointslice-controller"},
		syncs: "concurrent-service-endpoint-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return endpointslice.New(endpointslice.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "servicecidr", account: "service-cidrs-controller", upstream: []string{"service-cidr-controller"},
		kind: networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
		make: func(c Config, _ int) (controller, error) {
			return servicecidr.New(servicecidr.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "endpoints", account: "endpoint-controller", upstream: []string{"endpoints-controller", "endpoint"},
		syncs: "concurrent-endpoint-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return endpoints.New(endpoints.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "endpointslicemirroring", account: "endpointslicemirroring-controller",
		upstream: []string{"endpointslice-mirroring-controller"},
		syncs:    "mirroring-concurrent-service-endpoint-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return endpointslicemirroring.New(
				endpointslicemirroring.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "servicelb", account: "barque-load-balancers", upstream: []string{"service-lb-controller", "service"},
		off: func(c Config) bool { return c.LoadBalancers == nil },
		make: func(c Config, _ int) (controller, error) {
			return servicelb.New(
				servicelb.Config{Informers: c.Informers, Logger: c.Logger, Provider: c.LoadBalancers,
					ConfigFor: c.clients.Config})
		},
	},
}}

// nodes keep the Nodes, and pods by their life.
var nodes = group{"nodes", []entry{
	{
		name: "nodelifecycle", account: "node-controller", upstream: []string{"node-lifecycle-controller"},
		make: func(c Config, _ int) (controller, error) {
			return nodelifecycle.New(
				nodelifecycle.Config{Informers: c.Informers, Logger: c.Logger, Liveness: c.Liveness,
					Settings: c.NodeSettings, MemberLabel: c.MemberLabel})
		},
	},
	{
		name: "noderole", account: "barque-node-roles",
		make: func(c Config, _ int) (controller, error) {
			return noderole.New(noderole.Config{Informers: c.Informers, Logger: c.Logger, Servers: c.Roles})
		},
	},
	{
		name: "podgc", account: "pod-garbage-collector", upstream: []string{"pod-garbage-collector-controller"},
		make: func(c Config, _ int) (controller, error) {
			keep := c.Settings.FinishedPods
			if keep <= 0 {
				keep = -1
			}
			return podgc.New(podgc.Config{Informers: c.Informers, Logger: c.Logger, Finished: keep})
		},
	},
}}

// cluster serves all kinds.
var cluster = group{"cluster", []entry{
	{
		name: "namespace", account: "namespace-controller", upstream: []string{"namespace-controller"},
		syncs: "concurrent-namespace-syncs", workers: 10,
		make: func(c Config, workers int) (controller, error) {
			return namespace.New(
				namespace.Config{Informers: c.Informers, Logger: c.Logger, MetadataFor: c.clients.Metadata,
					Workers: workers})
		},
	},
	{
		name: "resourcequota", account: "resourcequota-controller", upstream: []string{"resourcequota-controller"},
		syncs: "concurrent-resource-quota-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return resourcequota.New(
				resourcequota.Config{Informers: c.Informers, Logger: c.Logger, MetadataFor: c.clients.Metadata,
					Evaluators: c.QuotaEvaluators, Ignored: c.QuotaIgnored, Serves: c.Serves, Workers: workers})
		},
	},
	{
		name: "garbagecollector", account: "generic-garbage-collector",
		upstream: []string{"garbage-collector-controller"}, syncs: "concurrent-gc-syncs", workers: 20,
		make: func(c Config, workers int) (controller, error) {
			return garbagecollector.New(
				garbagecollector.Config{Logger: c.Logger, MetadataFor: c.clients.Metadata, Workers: workers})
		},
	},
	{
		name: "clusterrole-aggregation", account: "clusterrole-aggregation-controller",
		upstream: []string{"clusterrole-aggregation-controller"},
		make: func(c Config, _ int) (controller, error) {
			return clusterrole.New(clusterrole.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "validatingadmissionpolicy-status", account: "validatingadmissionpolicy-status-controller",
		upstream: []string{"validatingadmissionpolicy-status-controller"},
		make: func(c Config, _ int) (controller, error) {
			return policystatus.New(policystatus.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "storageversionmigration", account: "storage-version-migrator-controller",
		upstream: []string{"storage-version-migrator-controller"},
		kind:     migrationv1.SchemeGroupVersion.WithResource("storageversionmigrations"),
		make: func(c Config, _ int) (controller, error) {
			return storageversionmigration.New(
				storageversionmigration.Config{Informers: c.Informers, Logger: c.Logger,
					MetadataFor: c.clients.Metadata,
					DefinitionsFor: func(lead context.Context) (storageversionmigration.Definitions, error) {
						client, err := apiextensions.NewForConfig(c.clients.Config(lead))
						if err != nil {
							return nil, err
						}
						return client.ApiextensionsV1().CustomResourceDefinitions(), nil
					}})
		},
	},
}}

// storage keeps volumes and their claims.
var storage = group{"storage", []entry{
	{
		name: "persistentvolume-binder", account: "persistent-volume-binder",
		upstream: []string{"persistentvolume-binder-controller"},
		make: func(c Config, _ int) (controller, error) {
			return persistentvolume.New(persistentvolume.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "attachdetach", account: "attachdetach-controller",
		upstream: []string{"persistentvolume-attach-detach-controller"},
		make: func(c Config, _ int) (controller, error) {
			return attachdetach.New(
				attachdetach.Config{Informers: c.Informers, Logger: c.Logger, ForceAfter: c.Settings.ForceDetachAfter})
		},
	},
	{
		name: "volumeexpand", account: "expand-controller", upstream: []string{"persistentvolume-expander-controller"},
		make: func(c Config, _ int) (controller, error) {
			return volumeexpand.New(volumeexpand.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "pvcunused", account: "pvc-protection-controller",
		make: func(c Config, _ int) (controller, error) {
			return protection.NewUnused(protection.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "ephemeralvolume", account: "ephemeral-volume-controller",
		upstream: []string{"ephemeral-volume-controller", "ephemeral-volume"},
		syncs:    "concurrent-ephemeralvolume-syncs", workers: 5,
		make: func(c Config, workers int) (controller, error) {
			return ephemeralvolume.New(
				ephemeralvolume.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "pvcprotection", account: "pvc-protection-controller",
		upstream: []string{"persistentvolumeclaim-protection-controller", "pvc-protection"},
		make: func(c Config, _ int) (controller, error) {
			return protection.NewClaims(protection.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "pvprotection", account: "pv-protection-controller",
		upstream: []string{"persistentvolume-protection-controller", "pv-protection"},
		make: func(c Config, _ int) (controller, error) {
			return protection.NewVolumes(protection.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "vacprotection", account: "volumeattributesclass-protection-controller",
		upstream: []string{"volumeattributesclass-protection-controller"},
		make: func(c Config, _ int) (controller, error) {
			return protection.NewClasses(protection.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "localprovisioner", account: "barque-local-provisioner",
		kind: storagev1.SchemeGroupVersion.WithResource("storageclasses"),
		make: func(c Config, _ int) (controller, error) {
			return localprovisioner.New(
				localprovisioner.Config{Informers: c.Informers, Logger: c.Logger, DefaultClass: c.DefaultStorageClass})
		},
	},
}}

// devices gives pods devices by their claims, and takes them away.
var devices = group{"devices", []entry{
	{
		name: "resourceclaim", account: "resource-claim-controller", upstream: []string{"resourceclaim-controller"},
		syncs: "concurrent-resourceclaim-syncs", workers: 50,
		kind: resourcev1.SchemeGroupVersion.WithResource("resourceclaims"),
		make: func(c Config, workers int) (controller, error) {
			return resourceclaim.New(resourceclaim.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
	{
		name: "devicetainteviction", account: "device-taint-eviction-controller",
		upstream: []string{"device-taint-eviction-controller"}, syncs: "concurrent-device-taint-eviction-syncs",
		workers: 8,
		kind:    resourcev1.SchemeGroupVersion.WithResource("devicetaintrules"),
		make: func(c Config, workers int) (controller, error) {
			return devicetainteviction.New(
				devicetainteviction.Config{Informers: c.Informers, Logger: c.Logger, Workers: workers})
		},
	},
}}

var signingRequests = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")

// credentials are certificates and tokens.
var credentials = group{"credentials", []entry{
	{
		name: "tokencleaner", account: "token-cleaner", upstream: []string{"token-cleaner-controller"},
		make: func(c Config, _ int) (controller, error) {
			return tokencleaner.New(tokencleaner.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "bootstrapsigner", account: "bootstrap-signer", upstream: []string{"bootstrap-signer-controller"},
		make: func(c Config, _ int) (controller, error) {
			return bootstrapsigner.New(bootstrapsigner.Config{Informers: c.Informers, Logger: c.Logger})
		},
	},
	{
		name: "csrapproving", account: "certificate-controller",
		upstream: []string{"certificatesigningrequest-approving-controller"}, kind: signingRequests,
		make: func(c Config, _ int) (controller, error) { return certificates.NewApproving(c.certificates()) },
	},
	{
		name: "csrsigning", account: "certificate-controller",
		upstream: []string{"certificatesigningrequest-signing-controller"}, kind: signingRequests,
		make: func(c Config, _ int) (controller, error) { return certificates.NewSigning(c.certificates()) },
	},
	{
		name: "csrcleaner", account: "certificate-controller",
		upstream: []string{"certificatesigningrequest-cleaner-controller"}, kind: signingRequests,
		make: func(c Config, _ int) (controller, error) { return certificates.NewCleaner(c.certificates()) },
	},
	{
		name: "trustbundle", account: "kube-apiserver-serving-clustertrustbundle-publisher",
		upstream: []string{"kube-apiserver-serving-clustertrustbundle-publisher-controller"},
		kind:     certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles"),
		make:     func(c Config, _ int) (controller, error) { return certificates.NewPublisher(c.certificates()) },
	},
	{
		name: "podcertificaterequestcleaner", account: "podcertificaterequestcleaner",
		upstream: []string{"podcertificaterequest-cleaner-controller"},
		kind:     certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests"),
		make: func(
			c Config, _ int,
		) (controller, error) {
			return certificates.NewPodRequestCleaner(c.certificates())
		},
	},
}}

func (c Config) certificates() certificates.Config {
	return certificates.Config{Informers: c.Informers, Logger: c.Logger, CA: c.CA, Signer: c.Signer, OwnUser: c.OwnUser}
}

// addons apply what users hand to the cluster as files and charts.
var addons = group{"addons", []entry{
	{
		name: "manifests", account: "barque-manifests",
		off: func(c Config) bool { return c.Addons == nil },
		make: func(c Config, _ int) (controller, error) {
			return manifests.New(
				manifests.Config{Informers: c.Informers, Custom: c.Addons.Custom, Logger: c.Logger,
					ConfigFor: c.clients.Config, Servers: c.Addons.Servers, Self: c.Addons.Self})
		},
	},
	{
		name: "helmcharts", account: "barque-helm-charts",
		off: func(c Config) bool { return c.Addons == nil },
		make: func(c Config, _ int) (controller, error) {
			return helmcharts.New(
				helmcharts.Options{Informers: c.Informers, Custom: c.Addons.Custom, Logger: c.Logger,
					ConfigFor: c.clients.Config, Charts: c.Addons.Charts, Metrics: c.Addons.Metrics})
		},
	},
}}

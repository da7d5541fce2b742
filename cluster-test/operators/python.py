# An operator after the client's examples: its replicas elect a leader, which copies each ConfigMap
# with the label copy=yes into a Secret of the same name.
import os
import traceback

from kubernetes import client, config, watch
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock

namespace, pod = os.environ['NAMESPACE'], os.environ['POD']
config.load_incluster_config()
core = client.CoreV1Api()


def lead():
    try:
        for event in watch.Watch().stream(core.list_namespaced_config_map, namespace, label_selector='copy=yes'):
            copy(event['object'])
    except Exception:
        traceback.print_exc()
    os._exit(1)  # the kubelet starts it again; the election would hold on to the lock


def copy(source):
    try:
        core.create_namespaced_secret(namespace, client.V1Secret(
            metadata={'name': source.metadata.name, 'annotations': {'by': pod}}, string_data=source.data))
    except client.ApiException as err:
        if err.status != 409:  # 409: an earlier leader has copied it
            raise


leaderelection.LeaderElection(electionconfig.Config(
    ConfigMapLock('lock', namespace, pod), lease_duration=17, renew_deadline=15, retry_period=5,
    onstarted_leading=lead, onstopped_leading=lambda: os._exit(1))).run()

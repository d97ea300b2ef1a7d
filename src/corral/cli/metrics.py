"""`corral metrics`: prints the metrics that Corral offers to Prometheus, the token for them, or a scrape configuration."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import client, find_endpoint, is_aws, own_page
from corral.cli.errors import CliError
from corral.cli.output import print_line

CONFIG = """\
scrape_configs:
  - job_name: corral
    scrape_interval: 5s
    authorization:
      credentials: {token}
    static_configs:
      - targets: ["{target}"]
    metric_relabel_configs:
      - source_labels: [model_name]
        target_label: modelName  # as dcgm-exporter calls it
"""
READ_S = 30.0


@click.command(short_help="Print the metrics for Prometheus.")
@data_option
@click.option("--token", is_flag=True, help="Print the token with which Prometheus reads the metrics.")
@click.option("--config", is_flag=True, help="Print a configuration for Prometheus. It contains the token.")
def metrics(data: DataFolder, token: bool, config: bool) -> None:
    """Print the metrics of the GPUs and of Corral itself, as Prometheus reads them from /metrics.

    The token only allows reading this page. `corral revoke --all` replaces it.
    """
    if token and config:
        raise click.UsageError("use either --token or --config.")
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral metrics` reads the metrics of a Corral. On AWS, use `aws cloudwatch get-metric-data`.")
    secret = own_page(endpoint, "/_corral/metrics-token")[0]["token"]
    url = urlsplit(str(client(endpoint, "ecs").meta.endpoint_url))
    if token:
        print_line(secret)
    elif config:
        _print(CONFIG.format(token=secret, target=url.netloc))
    else:
        from botocore.awsrequest import AWSRequest
        from botocore.httpsession import URLLib3Session

        request = AWSRequest("GET", f"{url.scheme}://{url.netloc}/metrics", {"Authorization": f"Bearer {secret}"})
        response = URLLib3Session(proxies={}, timeout=READ_S).send(request.prepare())
        if response.status_code != 200:
            raise CliError(f"/metrics answered {response.status_code}: {response.text.strip()}")
        _print(response.text)


def _print(text: str) -> None:
    for line in text.splitlines():
        print_line(line)

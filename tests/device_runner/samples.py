"""What phones print, in the layout of AOSP's ThermalManagerService.java and BatteryService.java."""

from __future__ import annotations


def thermal_text(status: int = 0, skin_c: float = 27.3, override: bool = False) -> str:
    """`dumpsys thermalservice`; the cached skin temperature is an old peak of 41.5 °C."""
    return f"""IsStatusOverride: {str(override).lower()}
ThermalEventListeners:
\tcallbacks: 4
\tkilled: false
\tbroadcasts count: -1
ThermalStatusListeners:
\tcallbacks: 7
\tkilled: false
\tbroadcasts count: -1
Thermal Status: {status}
Cached temperatures:
\tTemperature{{mValue=41.5, mType=3, mName=SKIN, mStatus=0}}
\tTemperature{{mValue=0.0, mType=2, mName=SUBBAT, mStatus=0}}
HAL Ready: true
HAL connection:
\tThermalHAL AIDL 3 connected: yes
Current temperatures from HAL:
\tTemperature{{mValue=31.2, mType=0, mName=AP, mStatus=0}}
\tTemperature{{mValue=26.4, mType=2, mName=BAT, mStatus=0}}
\tTemperature{{mValue={skin_c}, mType=3, mName=SKIN, mStatus={status}}}
\tTemperature{{mValue=NaN, mType=5, mName=PA, mStatus=0}}
\tTemperature{{mValue=4150.0, mType=6, mName=BCL, mStatus=0}}
\tTemperature{{mValue=30.5, mType=9, mName=NPU, mStatus=0}}
\tTemperature{{mValue=29.0, mType=99, mName=LATER, mStatus=0}}
Current cooling devices from HAL:
\tCoolingDevice{{mValue=0, mType=2, mName=TYPE_CPU}}
Temperature static thresholds from HAL:
\tTemperatureThreshold{{mType=3, mName=SKIN, mHotThrottlingThresholds=[NaN, 43.0, 45.0, 47.0, 52.0, NaN, NaN], \
mColdThrottlingThresholds=[NaN, NaN, NaN, NaN, NaN, NaN, NaN]}}
"""


BATTERY_TEXT = """Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  Dock powered: false
  Max charging current: 500000
  Max charging voltage: 5000000
  Charge counter: 3987000
  status: 2
  health: 2
  present: true
  level: 84
  scale: 100
  voltage: 4063
  temperature: 326
  technology: Li-ion
"""

# The files of /sys/devices/system/cpu of a chip with six and two cores, core 5 switched off.
CPU_FILES = {
    "online": "0-4,6-7",
    **{
        f"cpu{index}/{name}": value
        for index in range(8)
        for name, value in (
            ("cpu_capacity", "791" if index < 6 else "1024"),
            ("cpufreq/scaling_governor", "walt"),
            ("cpufreq/scaling_cur_freq", "384000" if index < 6 else "768000"),
            ("cpufreq/scaling_max_freq", "3532800" if index < 6 else "4319000"),
            ("cpufreq/cpuinfo_max_freq", "3628800" if index < 6 else "4742400"),
        )
    },
}
